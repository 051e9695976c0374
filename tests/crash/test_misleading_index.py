"""An index file that looks right from outside and is wrong inside is found out, and not believed again."""

from itertools import pairwise

import pytest

from envelope.types import LeaderEpoch, Offset
from jetstream.log.log import Log, LogConfig
from jetstream.log.reader import IndexRebuilt
from jetstream.log.search import offset_for_txid
from jetstream.log.segments.index import BatchIndex, decode_index
from jetstream.log.segments.segment import segment_path
from tests.support.compaction import append_records
from tests.support.logs import (
    DIRECTORY,
    Record,
    append,
    begun,
    file_content,
    opened,
    overwrite,
    stored_values,
)
from tests.support.memory_disk import MemoryDisk

VALUES = {0: b"zero", 1: b"one", 2: b"two", 3: b"three"}


@pytest.fixture
def misled() -> Log:
    """A log whose first segment has an index file that looks right from outside, and is wrong inside."""
    disk = MemoryDisk()
    config = LogConfig(segment_bytes=4000)
    log = begun(disk, config)
    for value in VALUES.values():
        append(log, [value])
    log.close()
    path = segment_path(DIRECTORY, Offset(0)).replace(".arrows", ".index")
    _, index = decode_index(file_content(disk, path))
    wrong = BatchIndex()
    first, second, *rest = (index[row] for row in range(len(index)))
    wrong.append(first._replace(next=second.next, length=first.length + second.length), verified=False)
    for entry in rest:
        wrong.append(entry, verified=False)
    overwrite(disk, path, wrong.encode(len(wrong)))
    again = opened(disk, config)
    assert again.recovery.problems == ()
    return again


def test_an_index_that_contradicts_its_segment_is_derived_anew_on_the_first_read(misled: Log) -> None:
    with pytest.raises(IndexRebuilt):
        misled.reader.verify_range(misled.reader.plan_read(Offset(0), 1 << 20, Offset(4)))
    assert stored_values(misled) == VALUES
    assert misled.reader.corrupt_ranges == ()


def test_a_read_planned_by_a_wrong_index_is_never_good_even_after_another_found_out(misled: Log) -> None:
    first = misled.reader.plan_read(Offset(0), 1, Offset(4))
    second = misled.reader.plan_read(Offset(1), 1, Offset(4))
    assert isinstance(misled._disk, MemoryDisk)
    calls = [misled._disk.calls]
    for stale in (first, second, first):
        with pytest.raises(IndexRebuilt):
            misled.reader.verify_range(stale)
        assert not stale.is_verified
        calls.append(misled._disk.calls)
    scanning, *others = (after - before for before, after in pairwise(calls))
    assert all(other < scanning for other in others), "the segment is scanned once"
    assert misled.reader.corrupt_ranges == (), "the data is good"
    assert stored_values(misled) == VALUES


def test_an_index_file_that_was_found_wrong_is_not_read_again(misled: Log) -> None:
    with pytest.raises(IndexRebuilt):
        misled.reader.verify_range(misled.reader.plan_read(Offset(0), 1 << 20, Offset(4)))
    segment = misled.reader.segments[0]
    segment.unload_index()
    assert segment.index is None
    assert misled.reader.plan_read(Offset(0), 1, Offset(4)).next == 1, "the file says 2"
    assert stored_values(misled) == VALUES
    assert misled.reader.corrupt_ranges == ()


def test_what_a_wrong_index_says_of_txids_counts_no_more_once_it_is_derived_anew() -> None:
    disk = MemoryDisk()
    log = begun(disk)
    for txid in range(4):
        append_records(log, [Record(txid=txid)])
    log.writer.roll()
    log.close()
    path = segment_path(DIRECTORY, Offset(0)).replace(".arrows", ".index")
    _, index = decode_index(file_content(disk, path))
    wrong = BatchIndex()
    wrong.append(index[0]._replace(last_txid=None, leader_epoch=LeaderEpoch(0)), verified=False)
    for row in range(1, 4):
        wrong.append(index[row]._replace(last_txid=None), verified=False)
    overwrite(disk, path, wrong.encode(4))
    again = opened(disk)
    assert offset_for_txid(again.reader, 2) == 4, "it is believed, as its checksum is right"
    with pytest.raises(IndexRebuilt):
        again.reader.verify_range(again.reader.plan_read(Offset(0), 1, Offset(4)))
    assert offset_for_txid(again.reader, 2) == 2
