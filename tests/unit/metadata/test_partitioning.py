"""What a partitioned stream is told to be, which partitions that makes, and what is refused."""

import pytest

from envelope.errors import InvalidConfig, StreamExists
from envelope.namespace_errors import CreationsTooFast, NamespaceLimitReached, SubjectNotAllowed
from envelope.partition_errors import StreamIsPartition
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import CreateStream
from metadata.partitioning import (
    is_partitioned,
    missing,
    partition_config,
    partitions_to_add,
    refuse_beyond_limits,
    refuse_changes_beyond_limits,
    refuse_lone_change,
    to_create,
    updated_partitions,
    wanted,
    whole_config,
)
from metadata.stream_config import StreamConfig
from metadata.stream_patch import StreamPatch
from tests.support.catalogs import apply, catalog_of, create, limit_namespace, partition, register, update

WHOLE = StreamConfig.model_validate(
    {"name": "orders", "subject": "orders.>", "partitions": 3, "partition_by": "key", "labels": {"a": "b"}}
)


def of_whole(number: int, partitions: int = 3) -> CreateStream:
    """A creation of one of the partitions of ``WHOLE``."""
    return partition(number=number, partitions=partitions, labels={"a": "b"})


def catalog(*numbers: int) -> Catalog:
    """A catalogue with these partitions of ``WHOLE``."""
    return catalog_of(register(), *(of_whole(number) for number in numbers))


def test_a_partition_has_the_configuration_of_its_stream() -> None:
    made = partition_config(WHOLE, 2, 3)
    assert made == of_whole(2).config
    assert whole_config(catalog(0, 1, 2).partition_rows("orders")) == WHOLE


def test_a_creation_makes_what_is_missing_and_nothing_twice() -> None:
    assert [config.name for config in to_create(WHOLE, catalog())] == ["orders/0", "orders/1", "orders/2"]
    assert [config.name for config in to_create(WHOLE, catalog(0, 2))] == ["orders/1"]
    assert to_create(WHOLE, catalog(0, 1, 2)) == []


def test_partitions_that_are_moved_one_by_one_are_found_by_who_says_no_number_of_replicas() -> None:
    moved = WHOLE.model_copy(update={"replicas": 2})
    with pytest.raises(StreamExists, match="another replicas"):
        to_create(moved, catalog(0, 1, 2))
    assert to_create(moved, catalog(0, 1, 2), any_replicas=True) == []
    [lacking] = to_create(moved, catalog(0, 2), any_replicas=True)
    assert (lacking.name, lacking.replicas) == ("orders/1", 2)


def test_what_was_made_of_more_partitions_later_is_found_as_that() -> None:
    grown = catalog_of(register(), of_whole(0, 1), *(of_whole(number, 3) for number in (1, 2)))
    rows = grown.partition_rows("orders")
    assert (wanted(rows), missing(rows, wanted(rows))) == (3, [])
    assert to_create(WHOLE, grown) == []
    assert whole_config(rows) == WHOLE


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"partitions": 2}, "partitions"),
        ({"partitions": 4}, "partitions"),
        ({"partition_by": "subject"}, "partition_by"),
        ({"labels": {}, "subject": "shop.>", "partitions": 4}, "subject, labels, partitions"),
    ],
)
def test_a_stream_that_is_there_with_another_configuration_is_not_created(
    changes: dict[str, object], fields: str
) -> None:
    other = StreamConfig.model_validate(WHOLE.model_dump() | changes)
    for present in ((0, 1, 2), (1,)):
        with pytest.raises(StreamExists) as raised:
            to_create(other, catalog(*present))
        assert raised.value.detail == {"fields": fields}


def test_a_creation_whose_names_are_taken_makes_nothing() -> None:
    for taken in (create("orders"), create("orders/1"), partition("orders/2", 0, 1)):
        with pytest.raises(StreamExists, match=r"orders"):
            to_create(WHOLE, catalog_of(register(), taken))
    with pytest.raises(StreamExists, match="orders/3"):
        partitions_to_add(
            WHOLE.model_copy(update={"partitions": 4}), catalog_of(register(), create("orders/3"))
        )


def test_partitions_are_only_added() -> None:
    assert updated_partitions(StreamPatch(read_only=True), WHOLE) == 3
    assert updated_partitions(StreamPatch(partitions=3), WHOLE) == 3
    assert updated_partitions(StreamPatch(partitions=8), WHOLE) == 8
    for patch in ({"partitions": 2}, {"partitions": None}):
        with pytest.raises(InvalidConfig, match="partitions are only added"):
            updated_partitions(StreamPatch.model_validate(patch), WHOLE)


@pytest.mark.parametrize(
    "patch", [{"partition_by": "queue"}, {"partition_by": None}, {"partition_of": "x"}, {"partition": 0}]
)
def test_a_partitioned_stream_stays_what_it_is(patch: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig, match="cannot be changed"):
        updated_partitions(StreamPatch.model_validate(patch), WHOLE)


def test_a_configuration_can_be_read_and_sent_back_whole() -> None:
    told = WHOLE.model_dump(mode="json")
    assert updated_partitions(StreamPatch.model_validate(told), WHOLE) == 3


def test_one_partition_alone_keeps_what_all_have_in_common() -> None:
    (row,) = catalog_of(register(), partition(by="queue")).streams()
    refuse_lone_change(row, StreamPatch(read_only=True, subject="orders.>", group=None))
    for patch in (StreamPatch(subject="shop.>"), StreamPatch(group="g")):
        with pytest.raises(StreamIsPartition, match="'orders/0' is a partition of 'orders'") as raised:
            refuse_lone_change(row, patch)
        assert raised.value.detail["partition_of"] == "orders"
    (ordinary,) = catalog_of(register(), create("plain")).streams()
    refuse_lone_change(ordinary, update("plain", subject="elsewhere.>").patch)


def test_who_asks_the_whole_stream_for_what_is_of_partitions_is_told_their_names() -> None:
    error = is_partitioned("orders", catalog(0, 1, 2))
    assert "orders/0 … orders/2" in error.description
    assert error.detail == {"partitions": 3}
    assert is_partitioned("orders", catalog(1)).description.endswith("ask orders/1")


def test_partitions_beyond_a_limit_are_refused_all_together_before_the_first_is_made() -> None:
    made = [of_whole(number) for number in range(3)]
    whole = catalog_of(register(), limit_namespace("orders", streams=2))
    with pytest.raises(NamespaceLimitReached) as reached:
        refuse_beyond_limits(made, whole)
    assert (reached.value.detail["more"], reached.value.detail["limit"]) == (3, 2)
    refuse_beyond_limits(made[:2], whole)
    refuse_beyond_limits([], whole)
    sized = [partition(number=number, partitions=3, retention={"bytes": 1 << 20}) for number in range(3)]
    reserved = (1 << 20) + sized[0].config.segment_bytes
    refuse_beyond_limits(sized, catalog_of(register(), limit_namespace("", bytes=3 * reserved)))
    with pytest.raises(NamespaceLimitReached):
        refuse_beyond_limits(sized, catalog_of(register(), limit_namespace("", bytes=3 * reserved - 1)))


def test_a_change_by_which_all_partitions_reserve_too_much_changes_none() -> None:
    made = [partition(number=number, partitions=3, retention={"bytes": 1 << 20}) for number in range(3)]
    there = catalog_of(register(), *made)
    rows, reserved = there.partition_rows("orders"), there.namespaces.uses.of("orders").bytes
    apply(there, limit_namespace("orders", bytes=reserved + 2 * (1 << 20)))

    def change(**changes: object) -> None:
        refuse_changes_beyond_limits(rows, StreamPatch.model_validate(changes), there)

    with pytest.raises(NamespaceLimitReached) as reached:
        change(retention={"bytes": 2 << 20})
    assert (reached.value.detail["more"], reached.value.detail["used"]) == (3 << 20, reserved)
    change(retention={"bytes": (1 << 20) + (1 << 19)})
    change(labels={"a": "c"})
    change(min_insync_replicas=7)  # which is refused when it is made
    apply(there, limit_namespace("orders", subjects=["shop.>"]))
    with pytest.raises(SubjectNotAllowed):
        change(subject="pay.>")


def test_partitions_wait_for_a_minute_that_has_room_for_them_all_if_there_can_be_one() -> None:
    made = [of_whole(number) for number in range(3)]
    used = catalog_of(register(), limit_namespace("", creations_per_minute=4), create("a"), create("b"))
    with pytest.raises(CreationsTooFast) as refused:
        refuse_beyond_limits(made, used)
    assert refused.value.detail["retry_after_ms"] == 15_000
    refuse_beyond_limits(made[:2], used)
    few = catalog_of(register(), limit_namespace("", creations_per_minute=2))
    refuse_beyond_limits(made, few)  # two are made, and the same request does the rest
