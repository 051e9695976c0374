"""Partitioned streams in the catalogue: which partitions there are, what counts, and whose name is whose."""

import pytest

from envelope.errors import InvalidConfig, InvalidName, JetstreamError, StreamExists
from envelope.limits import STREAM_NAME_CHARS_MAX
from envelope.types import StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, DeleteStream
from metadata.catalog.events import Event, PartitionCountChanged, StreamCreated, StreamDeleted
from metadata.partitioning import binds
from metadata.stream_config import StreamConfig
from tests.support.catalogs import apply, catalog_of, create, partition, refusal, register, update

ORDERS = StreamName("orders")


def delete(number: int) -> DeleteStream:
    return DeleteStream(StreamName(f"orders/{number}"))


def told(catalog: Catalog, *commands: Command) -> list[Event]:
    """What the commands did to the counts."""
    events = [event for command in commands for event in apply(catalog, command)]
    return [event for event in events if isinstance(event, PartitionCountChanged)]


def test_no_partition_takes_messages_before_all_are_there() -> None:
    catalog = catalog_of(register(), partition(number=2, partitions=3), partition(number=0, partitions=3))
    assert catalog.partitions_of("orders") == 0
    events = apply(catalog, partition(number=1, partitions=3))
    assert catalog.partitions_of("orders") == 3
    created = catalog.stream(StreamName("orders/1"))
    assert created is not None
    assert events == (StreamCreated(created), PartitionCountChanged(ORDERS, 3))
    assert [row.name for row in catalog.partition_rows("orders")] == ["orders/0", "orders/1", "orders/2"]


def test_a_name_binds_the_subject_of_its_stream_or_of_all_its_partitions() -> None:
    catalog = catalog_of(register(), create("lone", subject="lone.>"), partition(number=0, partitions=2))
    assert binds(catalog, "lone", "lone.x")
    assert not binds(catalog, "lone", "other.x")
    assert not binds(catalog, "orders", "orders.x"), "no partition takes messages yet"
    apply(catalog, partition(number=1, partitions=2))
    assert binds(catalog, "orders", "orders.x")
    assert not binds(catalog, "nobody", "orders.x")


def test_added_partitions_count_once_the_last_of_them_is_there() -> None:
    catalog = catalog_of(register(), partition(number=0, partitions=2), partition(number=1, partitions=2))
    assert told(catalog, partition(number=3, partitions=4)) == []
    assert catalog.partitions_of("orders") == 2
    assert told(catalog, partition(number=2, partitions=4)) == [PartitionCountChanged(ORDERS, 4)]


def test_without_its_first_partition_a_stream_takes_nothing() -> None:
    catalog = catalog_of(
        register(),
        partition(number=0, partitions=1),
        partition(number=1, partitions=3),
        partition(number=2, partitions=3),
    )
    assert told(catalog, delete(2)) == [PartitionCountChanged(ORDERS, 1)]
    row = catalog.stream(StreamName("orders/0"))
    assert row is not None
    events = apply(catalog, delete(0))
    assert isinstance(events[0], StreamDeleted)
    assert events[1:] == (PartitionCountChanged(ORDERS, 0),)
    assert told(catalog, delete(1)) == []
    assert catalog.partition_rows("orders") == ()


def test_changes_that_leave_the_set_as_it_is_are_not_told() -> None:
    catalog = catalog_of(register(), partition(partitions=1))
    assert told(catalog, update("orders/0", subject="shop.>"), register(), create("other")) == []
    assert catalog.partitions_of("orders") == 1
    assert (catalog.partitions_of("other"), catalog.partitions_of("orders/0")) == (0, 0)


def test_a_partitioned_stream_and_a_stream_cannot_have_one_name() -> None:
    partitioned = catalog_of(register(), partition(number=3, partitions=4))
    error = refusal(apply(partitioned, create("orders")))
    assert isinstance(error, StreamExists)
    assert "partitioned" in error.description
    plain = catalog_of(register(), create("orders"))
    assert isinstance(refusal(apply(plain, partition(number=0))), StreamExists)
    assert plain.partition_rows("orders") == ()


def test_a_partition_cannot_be_partitioned_nor_a_partitioned_stream_be_a_partition() -> None:
    catalog = catalog_of(register(), partition("orders", 0, 1))
    assert isinstance(refusal(apply(catalog, partition("orders/0", 0, 1))), StreamExists)
    catalog = catalog_of(register(), partition("orders/0", 0, 1))
    assert isinstance(refusal(apply(catalog, partition("orders", 0, 1))), StreamExists)


def test_a_stream_that_is_called_like_a_partition_is_none_and_is_in_the_way() -> None:
    catalog = catalog_of(register(), create("orders/1"))
    apply(catalog, partition(number=0, partitions=2))
    assert isinstance(refusal(apply(catalog, partition(number=1, partitions=2))), StreamExists)
    assert catalog.partitions_of("orders") == 0


def test_the_partitions_of_a_stream_are_partitioned_alike() -> None:
    catalog = catalog_of(register(), partition(number=0, partitions=2, by="key"))
    error = refusal(apply(catalog, partition(number=1, partitions=2, by="subject")))
    assert isinstance(error, StreamExists)
    assert error.detail == {"fields": "partition_by"}


def test_a_partitioned_stream_as_a_whole_is_no_stream() -> None:
    catalog = catalog_of(register())
    assert isinstance(refusal(apply(catalog, create(partitions=2, partition_by="key"))), InvalidConfig)
    assert catalog.count_streams() == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": 8},
        {"partitions": None},
        {"partition_by": "queue"},
        {"partition_of": "shop"},
        {"partition": 1},
        {"name": "orders/1"},
    ],
)
def test_a_partition_stays_what_it_is(changes: dict[str, object]) -> None:
    catalog = catalog_of(register(), partition())
    before = catalog.streams()
    error = refusal(apply(catalog, update("orders/0", **changes)))
    assert isinstance(error, InvalidConfig)
    assert error.detail == {"field": next(iter(changes))}
    assert catalog.streams() == before


def test_what_a_partition_is_may_be_repeated() -> None:
    config = partition().config
    catalog = catalog_of(register(), partition())
    assert refusal(apply(catalog, update("orders/0", **config.model_dump(exclude={"labels"})))) is None
    assert catalog.streams()[0].config == config


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"partitions": 4}, InvalidConfig, "partition_by: say"),
        ({"partition_by": "key"}, InvalidConfig, "partition_by: say"),
        ({"partition": 1}, InvalidConfig, "partition: goes"),
        ({"partition_of": "a"}, InvalidConfig, "partition: goes"),
        ({"partition_of": "a", "partition": 0}, InvalidConfig, "partition: 0 of partitions: None"),
        (
            {"partition_of": "a", "partition": 4, "partitions": 4, "partition_by": "key"},
            InvalidConfig,
            "partition: 4 of partitions: 4",
        ),
        (
            {"partition_of": "a", "partition": 1, "partitions": 4, "partition_by": "key"},
            InvalidConfig,
            "name: 'a' is not 'a/1'",
        ),
        ({"partitions": 4, "partition_by": "key", "group": "g"}, InvalidConfig, "group: messages"),
        ({"partitions": 4, "partition_by": "subject", "group": "g"}, InvalidConfig, "group: messages"),
        (
            {"name": "x" * (STREAM_NAME_CHARS_MAX - 3), "partitions": 1, "partition_by": "key"},
            InvalidName,
            "the limit is",
        ),
    ],
)
def test_a_configuration_is_of_a_stream_a_partition_or_a_partitioned_stream(
    fields: dict[str, object], kind: type[JetstreamError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        StreamConfig.model_validate({"name": "a", "subject": "a.>", **fields})


def test_partitions_by_queue_share_the_subject_in_the_group_of_their_stream() -> None:
    assert partition(by="queue").config.queue == "orders"
    assert partition(by="queue", group="workers").config.queue == "workers"
    assert partition(by="key").config.queue == partition(by="subject").config.queue == ""
    assert create(group="workers").config.queue == "workers"
    assert create().config.queue == ""
