"""How many partitions share the messages, after any creations and deletions in any order."""

from hypothesis import given
from hypothesis import strategies as st

from envelope.types import Incarnation, StreamName
from metadata.catalog import snapshot
from metadata.catalog.commands import Command, CreateStream, DeleteStream
from metadata.catalog.events import CommandRefused, PartitionCountChanged
from metadata.catalog.partitions import effective_count
from tests.support.catalogs import apply, catalog_of, create, partition, register, update

PARTITIONED = ("orders", "orders/0", "shop")


def defined_count(partitions: dict[int, int]) -> int:
    """Return the largest count of which every partition is there; the definition, word by word."""
    complete = [
        count for count in partitions.values() if all(number in partitions for number in range(count))
    ]
    return max(complete, default=0)


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 10)))
def test_the_largest_complete_count_is_in_force(partitions: dict[int, int]) -> None:
    assert effective_count(partitions) == defined_count(partitions)


def created(of: str, number: int, more: int, by: str) -> CreateStream:
    return partition(of, number, number + more, by=by)


changes: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        created,
        of=st.sampled_from(PARTITIONED),
        number=st.integers(0, 5),
        more=st.integers(1, 4),
        by=st.sampled_from(("key", "key", "key", "queue")),
    ),
    st.builds(create, name=st.sampled_from((*PARTITIONED, "orders/1"))),
    st.builds(
        lambda of, number: DeleteStream(StreamName(f"{of}/{number}")),
        of=st.sampled_from(PARTITIONED),
        number=st.integers(0, 5),
    ),
    st.builds(lambda name: DeleteStream(StreamName(name)), st.sampled_from(PARTITIONED)),
    st.just(update("orders/0", subject="moved.>")),
)


@given(st.lists(changes, max_size=40))
def test_the_catalogue_counts_what_its_streams_say(commands: list[Command]) -> None:
    catalog = catalog_of(register())
    counts = dict.fromkeys(PARTITIONED, 0)
    for life, command in enumerate(commands):
        if isinstance(command, CreateStream):
            command = CreateStream(  # noqa: PLW2901 - with a life of its own, as whoever proposes draws one
                config=command.config,
                incarnation=Incarnation(f"l{life}"),
                created=command.created,
                replicas=command.replicas,
                leader=command.leader,
            )
        events = apply(catalog, command)
        catalog.audit()
        for event in events:
            assert not isinstance(event, CommandRefused) or len(events) == 1
            if isinstance(event, PartitionCountChanged):
                assert counts[event.partitioned] != event.count, "only changes are told"
                counts[event.partitioned] = event.count
        for name in PARTITIONED:
            rows = catalog.partition_rows(name)
            assert catalog.partitions_of(name) == counts[name]
            said = {row.config.partition or 0: row.config.partitions or 0 for row in rows}
            assert counts[name] == defined_count(said)
            assert list(said) == sorted(said)
            if rows:
                assert catalog.stream(StreamName(name)) is None
    restored = snapshot.decode(snapshot.encode(catalog))
    assert {name: restored.partitions_of(name) for name in PARTITIONED} == counts
