"""A table under crashes: it is always as before a micro-batch or as after it, and a batch counts once."""

from contextlib import suppress
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, RequestError, StorageError
from envelope.types import TimestampUs
from jetstream.spark.pipelines.tables.table_store import bring_in, read_version
from jetstream.spark.pipelines.tables.table_version import (
    LOCK_PATH,
    VERSION_PATH,
    MergedBucket,
    MergedMicroBatch,
    TableVersion,
)
from tests.support.example_counts import examples
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    Survival,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.spark_tables import (
    GRACE_US,
    LAYOUT,
    QUERY,
    Batch,
    KeyedRecord,
    TableModel,
    content_of,
    files_on,
    merge_batch,
)

FIRST = [KeyedRecord(n, b"key %d" % n, b"first %d" % n) for n in range(12)]
SECOND = [
    *(KeyedRecord(12 + n, b"key %d" % n, b"second %d" % n) for n in range(3)),
    KeyedRecord(15, b"key 5", None),
    KeyedRecord(16, b"new", b"second"),
]


def after(*batches: Batch) -> dict[bytes, bytes]:
    model = TableModel()
    for batch in batches:
        model.merge(batch)
    return model.content


def begun() -> MemoryDisk:
    """A disk with a table that has the first batch."""
    disk = MemoryDisk()
    merge_batch(disk, 0, FIRST)
    return disk


def test_batches_are_merged_and_one_that_is_in_changes_nothing() -> None:
    disk = begun()
    version = merge_batch(disk, 1, SECOND)
    assert content_of(disk) == after(FIRST, SECOND)
    for number, batch in ((1, SECOND), (0, FIRST)):
        assert merge_batch(disk, number, batch) == version
    assert content_of(disk) == after(FIRST, SECOND)


def test_a_reader_of_an_older_version_reads_it_to_its_end_within_the_grace() -> None:
    disk = begun()
    older = read_version(disk)
    merge_batch(disk, 1, SECOND, now=100)
    assert content_of(disk, older) == after(FIRST)
    merge_batch(disk, 2, [], now=100 + GRACE_US)
    assert files_on(disk) == set(read_version(disk).file_of.values())
    assert content_of(disk) == after(FIRST, SECOND)


def test_a_batch_that_touches_few_buckets_leaves_the_files_of_others() -> None:
    disk = begun()
    before = read_version(disk).file_of
    merge_batch(disk, 1, SECOND[-1:])
    now = read_version(disk).file_of
    assert len([bucket for bucket in before if now[bucket] != before[bucket]]) == 1


SURVIVALS: tuple[Survival, ...] = (
    nothing_survives,
    everything_survives,
    random_survival(0),
    random_survival(1),
)
every_call = pytest.mark.parametrize(
    "every",
    [4, pytest.param(1, marks=pytest.mark.slow("tests/unit/spark/pipelines/tables/test_table_store.py"))],
)
"""Or every fourth, from another one on in each case: all cases together strike all calls."""


@every_call
@pytest.mark.parametrize("kind", [FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER])
@pytest.mark.parametrize("survive", SURVIVALS, ids=lambda each: each.__name__)
def test_the_power_may_go_at_every_call(kind: FaultKind, survive: Survival, every: int) -> None:
    for call in count(1 + SURVIVALS.index(survive) % every, every):
        disk = begun()
        disk.faults[disk.calls + call] = Fault(kind, bytes_kept=5)
        try:
            merge_batch(disk, 1, SECOND)
        except PowerLostError:
            pass
        else:
            assert call > 20, "every step was struck"
            break
        found = disk.power_loss(survive)
        assert content_of(found) in (after(FIRST), after(FIRST, SECOND))
        merge_batch(found, 1, SECOND)
        assert content_of(found) == after(FIRST, SECOND)
        merge_batch(found, 2, [], now=2 * GRACE_US)
        assert files_on(found) == set(read_version(found).file_of.values()), "nothing is left over"


@every_call
@pytest.mark.parametrize(
    ("first", "kind"), [(0, FaultKind.DISK_FULL), (1, FaultKind.SHORT_WRITE), (2, FaultKind.IO_ERROR)]
)
def test_every_call_may_fail(first: int, kind: FaultKind, every: int) -> None:
    every = min(every, 3)
    for call in count(1 + first % every, every):
        disk = begun()
        struck = disk.calls + call
        disk.faults[struck] = Fault(kind, bytes_kept=5)
        with suppress(JetstreamError):
            merge_batch(disk, 1, SECOND)
        assert disk.open_files == 0
        if disk.calls < struck:
            assert call > 20, "every step was struck"
            break
        disk.faults.clear()
        assert content_of(disk) in (after(FIRST), after(FIRST, SECOND))
        merge_batch(disk, 1, SECOND)
        assert content_of(disk) == after(FIRST, SECOND)


def test_what_an_attempt_has_left_is_removed_before_the_next_one_writes() -> None:
    """A disk that is full would not be helped by more of them."""
    disk = begun()
    needed = files_on(disk)
    twin = begun()
    assert len(files_on(twin)) == len(needed)  # and as many calls
    merge_batch(twin, 1, SECOND)
    published = len(twin.trace) - twin.trace[::-1].index(f"rename {VERSION_PATH}")
    disk.faults[published] = Fault(FaultKind.DISK_FULL)
    with pytest.raises(DiskFull):
        merge_batch(disk, 1, SECOND)
    assert files_on(disk) > needed
    seen = []

    def merge(_: TableVersion) -> list[MergedBucket]:
        seen.append(files_on(disk))
        return []

    bring_in(disk, LAYOUT, MergedMicroBatch(QUERY, 1), merge, now=lambda: TimestampUs(0), grace_us=0)
    assert seen == [needed]


def test_the_first_batch_of_all_may_be_cut_short_too() -> None:
    for call in range(1, 40):
        disk = MemoryDisk({call: Fault(FaultKind.POWER_LOSS)})
        try:
            merge_batch(disk, 0, FIRST)
        except PowerLostError:
            found = disk.power_loss(everything_survives)
            merge_batch(found, 0, FIRST)
            assert content_of(found) == after(FIRST)


def test_one_process_at_a_time_brings_a_batch_in() -> None:
    disk = begun()
    lock = disk.lock(LOCK_PATH)
    with pytest.raises(StorageError):
        merge_batch(disk, 1, SECOND)
    lock.close()
    merge_batch(disk, 1, SECOND)


def test_what_is_no_table_and_what_is_damaged_is_said() -> None:
    disk = MemoryDisk()
    with pytest.raises(RequestError, match="no table"):
        read_version(disk)
    disk = begun()
    file = disk.open(VERSION_PATH)
    file.write((b"x",), 10)
    file.close()
    with pytest.raises(CorruptDataError):
        merge_batch(disk, 1, SECOND)


RECORDS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"d", b"", b"\x00", b"long key"]),
        st.none() | st.binary(max_size=3),
    ),
    max_size=12,
)


@settings(max_examples=examples(40))
@given(st.lists(st.tuples(RECORDS, st.integers(0, 2)), max_size=8))
def test_any_batches_with_any_repeats_make_the_table_of_a_dict(
    told: list[tuple[list[tuple[bytes, bytes | None]], int]],
) -> None:
    disk, model, offset, seen = MemoryDisk(), TableModel(), 0, []
    for number, (pairs, repeats) in enumerate(told):
        batch = [KeyedRecord(offset + n, key, value) for n, (key, value) in enumerate(pairs)]
        offset += len(batch)
        seen.append(batch)
        model.merge(batch)
        merge_batch(disk, number, batch, now=number * GRACE_US // 2)
        for earlier in range(repeats):
            repeated = max(number - earlier, 0)
            merge_batch(disk, repeated, seen[repeated])
        assert content_of(disk) == model.content
