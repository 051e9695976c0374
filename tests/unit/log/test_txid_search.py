"""Where a transaction id begins: always what a look at every record finds."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError, UnavailableError
from envelope.types import LeaderEpoch, Offset
from jetstream.log.format.batch import encode
from jetstream.log.format.plain_batch_encoder import PlainRecords, encode_plain
from jetstream.log.format.schema import END_OF_STREAM
from jetstream.log.log import Log, LogConfig
from jetstream.log.search import offset_for_txid
from jetstream.log.segments.index import ENTRY_BYTES, HEADER_BYTES
from jetstream.log.state.epochs import EpochHistory, EpochStart
from jetstream.node.tiers.tiered_stream import search_start
from metadata.catalog.tables import TxidSet
from tests.support.compaction import COMPACTED, append_records, compact
from tests.support.counting_disk import CountingDisk
from tests.support.logs import (
    NOW,
    SMALL,
    Record,
    begun,
    file_content,
    flipped,
    opened,
    overwrite,
    records_batch,
)
from tests.support.memory_disk import MemoryDisk

Txids = list[list[int | None]]


def log_of(batches: Txids, config: LogConfig = SMALL, disk: MemoryDisk | None = None) -> Log:
    log = begun(disk or MemoryDisk(), config)
    for txids in batches:
        records = records_batch([Record(txid=txid) for txid in txids], log.log_end_offset)
        log.writer.append_group((encode(records, log.log_end_offset, log.reader.last_epoch),), NOW)
    log.writer.sync()
    return log


def growing(steps: list[list[int | None]]) -> Txids:
    """Let what is not None be how much larger a txid is than the one before it."""
    last, batches = -5, []
    for batch in steps:
        txids: list[int | None] = []
        for step in batch:
            last += step or 0
            txids.append(None if step is None else last)
        batches.append(txids)
    return batches


STEPS = st.lists(st.lists(st.none() | st.integers(0, 3), min_size=1, max_size=4), max_size=12)


@given(STEPS, st.integers(-8, 40), st.integers(0, 6))
def test_the_first_record_that_reaches_it_is_found(
    steps: list[list[int | None]], wanted: int, removed: int
) -> None:
    batches = growing(steps)
    log = log_of(batches)
    start = min(removed, log.log_end_offset)
    log.truncate_before(Offset(start), log.log_end_offset)
    txids = [txid for batch in batches for txid in batch]
    reached = [
        place for place, txid in enumerate(txids) if place >= start and txid is not None and txid >= wanted
    ]
    assert offset_for_txid(log.reader, wanted) == (reached[0] if reached else log.log_end_offset)


def test_the_smallest_number_is_a_txid_like_any_other() -> None:
    log = log_of([[None], [-(1 << 63)], [None], [-(1 << 63) + 1]], LogConfig())
    assert [offset_for_txid(log.reader, -(1 << 63) + more) for more in (0, 1, 2)] == [1, 3, 4]


def test_a_repeated_txid_is_found_behind_the_start_of_a_log_that_begins_inside_a_segment() -> None:
    log = log_of([[5], [None], [None, 5], [5]], LogConfig())
    log.truncate_before(Offset(1), log.log_end_offset)
    assert offset_for_txid(log.reader, 5) == 3
    log.truncate_before(Offset(4), log.log_end_offset)
    assert offset_for_txid(log.reader, 1) == 4


# --- what it costs -----------------------------------------------------------------------------------------

BATCH_RECORDS = 100
BATCHES = 1000


def sparse_log(disk: MemoryDisk) -> Log:
    """100,000 records in several segments, of which one has a txid; nothing is in memory."""
    log = begun(disk, LogConfig(segment_bytes=1_000_000))
    for number in range(BATCHES):
        base = log.log_end_offset
        plain = PlainRecords(base, NOW, (b"orders.new",) * BATCH_RECORDS, (b"value",) * BATCH_RECORDS)
        if number != BATCHES // 3:
            log.writer.append_group((encode_plain(plain, log.reader.last_epoch),), NOW)
            continue
        records = plain.to_records()
        txids = [7 if row == 50 else None for row in range(BATCH_RECORDS)]
        records = records.set_column(5, "txid", pa.array(txids, pa.int64()))
        log.writer.append_group((encode(records, base, log.reader.last_epoch),), NOW)
    log.close()
    return opened(disk)


def test_of_a_hundred_thousand_records_the_one_with_a_txid_costs_one_index_and_one_batch() -> None:
    disk = CountingDisk()
    log = sparse_log(disk)
    assert len(log.reader.segments) > 4
    wanted = Offset(BATCHES // 3 * BATCH_RECORDS + 50)
    disk.read_bytes.clear()
    assert offset_for_txid(log.reader, 7) == wanted
    found = log.reader.locate(wanted)
    last = found.index[len(found.index) - 1]
    # The last batch tells whether the index file fits its segment; the wanted one is checked, then read.
    assert disk.read_bytes == {
        found.segment.path: last.length + len(END_OF_STREAM) + 2 * found.entry.length,
        found.segment.index_path: HEADER_BYTES + ENTRY_BYTES * len(found.index),
    }
    disk.read_bytes.clear()
    assert offset_for_txid(log.reader, 7) == wanted
    assert disk.read_bytes == {found.segment.path: found.entry.length}
    disk.read_bytes.clear()
    for segment in log.reader.segments:
        segment.unload_index()
    assert offset_for_txid(log.reader, 8) == log.log_end_offset
    assert not disk.read_bytes, "that there is none is known without reading"


# --- what happens meanwhile --------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", [".index", ".arrows"])
def test_what_retention_removes_meanwhile_is_not_waited_for(trigger: str) -> None:
    disk = CountingDisk()
    log_of([[number] for number in range(9)], disk=disk).close()
    log = opened(disk, SMALL)
    disk.trigger = trigger
    disk.before_read = lambda: log.truncate_before(Offset(4), log.log_end_offset)
    assert offset_for_txid(log.reader, 1) == 4
    assert disk.before_read is None


@pytest.mark.parametrize("trigger", [".index", ".arrows"])
def test_what_compaction_removes_meanwhile_is_passed_over(trigger: str) -> None:
    disk = CountingDisk()
    log = begun(disk, COMPACTED)
    for number, key in enumerate((b"a", b"b", None, b"b", b"a", None, None, None, None)):
        append_records(log, [Record(key=key, txid=number)])
    log.close()
    log = opened(disk, COMPACTED)
    disk.trigger = trigger
    disk.before_read = lambda: compact(disk, log, NOW)
    assert offset_for_txid(log.reader, 1) == 2
    assert disk.before_read is None


def test_a_log_that_is_closed_meanwhile_is_an_error() -> None:
    disk = CountingDisk()
    log_of([[number] for number in range(9)], disk=disk).close()
    log = opened(disk, SMALL)
    disk.trigger, disk.before_read = ".index", log.close
    with pytest.raises(UnavailableError):
        offset_for_txid(log.reader, 1)


@pytest.mark.parametrize("reads_files", [True, False])
def test_a_segment_says_what_compaction_has_left_of_it(reads_files: bool) -> None:
    disk = MemoryDisk()
    log = begun(disk, COMPACTED)
    for number, key in enumerate((None, b"a", b"b", b"a", b"b", None, None, None, None)):
        append_records(log, [Record(key=key, txid=10 * number)])
    assert [segment.last_txid for segment in log.reader.segments[:2]] == [20, 50]
    assert compact(disk, log, NOW)
    if reads_files:
        log.close()
        log = opened(disk, COMPACTED)
    assert [segment.last_txid for segment in log.reader.segments[:2]] == [0, 50], "the largest is gone"
    assert [offset_for_txid(log.reader, txid) for txid in (0, 1, 20, 31)] == [0, 3, 3, 4]


# --- damage ------------------------------------------------------------------------------------------------


def damaged(batches: Txids, row: int, *, knows: bool) -> Log:
    """Return a log of one segment of which the batch in that row is damaged, as it ``knows`` or not."""
    disk = MemoryDisk()
    log = log_of(batches, LogConfig(), disk)
    entry, path = log.reader.segments[0].load_index()[row], log.reader.segments[0].path
    log.close()
    overwrite(disk, path, flipped(file_content(disk, path), entry.end - 9, 3))
    return opened(disk, full=knows)


@pytest.mark.parametrize("knows", [True, False])
def test_damage_is_an_error_where_the_record_would_be(knows: bool) -> None:
    with pytest.raises(CorruptDataError):
        offset_for_txid(damaged([[1], [2], [3]], 1, knows=knows).reader, 2)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize(("wanted", "found"), [(1, 0), (3, 3)])
def test_damage_elsewhere_is_not_read(wanted: int, found: int, knows: bool) -> None:
    assert offset_for_txid(damaged([[1], [2], [2, 3]], 1, knows=knows).reader, wanted) == found


@pytest.mark.parametrize(
    ("batches", "row", "wanted", "found"),
    [
        ([[1], [2], [None], [3]], 1, 3, None),  # it may have held one that is large enough
        ([[1], [2], [None], [3], [4]], 1, 4, 4),
        ([[1], [2], [None], [2, 3]], 1, 3, 4),
        ([[1], [2], [None]], 1, 3, None),
        ([[1], [2], [None]], 0, 3, 3),
        ([[None], [2], [3]], 0, 1, None),
        ([[1], [None], [3]], 2, 1, 0),
    ],
)
def test_what_is_known_to_be_damaged_may_have_held_it_unless_a_smaller_one_follows(
    batches: Txids, row: int, wanted: int, found: int | None
) -> None:
    log = damaged(batches, row, knows=True)
    if found is None:
        with pytest.raises(CorruptDataError):
            offset_for_txid(log.reader, wanted)
    else:
        assert offset_for_txid(log.reader, wanted) == found


@given(STEPS, STEPS, st.integers(-6, 12), st.integers(-8, 40))
def test_a_txid_above_the_one_that_was_set_is_looked_for_behind_it_and_others_from_the_start(
    before: list[list[int | None]], behind: list[list[int | None]], txid: int, wanted: int
) -> None:
    """Records before it count as if they had the one that was set at most: so what is found never falls."""
    first, rest = growing(before), growing(behind)
    lower = min((each for batch in rest for each in batch if each is not None), default=0) - txid
    later: Txids = [[None if each is None else each - lower for each in batch] for batch in rest]
    log = log_of(first + later)
    place = Offset(sum(map(len, first)))
    counted = [None if each is None else min(each, txid) for batch in first for each in batch]
    counted += [each for batch in later for each in batch]
    reached = (Offset(at) for at, each in enumerate(counted) if each is not None and each >= wanted)
    start = search_start(wanted, TxidSet(LeaderEpoch(1), place, txid), log.reader.epochs)
    assert offset_for_txid(log.reader, wanted, start) == next(reached, log.log_end_offset)


def test_a_reign_that_begins_below_a_txid_that_was_set_is_looked_through() -> None:
    """An unclean election left a log that was shorter than the one at whose end it was set."""
    first = EpochStart(LeaderEpoch(1), Offset(0), NOW)
    epochs = EpochHistory((first, EpochStart(LeaderEpoch(3), Offset(5), NOW)))
    of_before, of_this = (TxidSet(LeaderEpoch(epoch), Offset(9), 7) for epoch in (2, 3))
    assert search_start(8, of_before, epochs) == 5
    assert search_start(8, of_this, epochs) == 9
    assert search_start(7, of_before, epochs) == search_start(8, None, epochs) == 0
