"""Indexes written once and kept: today's version is read as it lies, an older one is derived anew.

``index-v1.index`` was written by the version before transaction ids were in the index, and nothing writes it
any more; ``index-v2.index`` is what `tests.interop.golden_segments` writes.
"""

from envelope.types import Offset
from jetstream.log.inspection import ProblemKind, inspect_segment
from jetstream.log.log import Log
from jetstream.log.search import offset_for_txid
from jetstream.log.segments.index import decode_index
from jetstream.log.segments.segment import segment_path
from tests.interop.golden_segments import INDEX, INDEXED, golden, indexed_log
from tests.support.logs import DIRECTORY, file_content, opened
from tests.support.memory_disk import MemoryDisk

SEGMENT = segment_path(DIRECTORY, Offset(0))
INDEX_PATH = SEGMENT.replace(".arrows", ".index")
LAST_TXIDS = [None, (1 << 63) - 1, 550, None]
OLD = "index-v1.index"


def scanned(disk: MemoryDisk) -> tuple[Log, int]:
    log = opened(disk)
    assert log.reader.corrupt_ranges == ()
    return log, log.recovery.scanned_bytes


def test_the_index_that_is_written_today_is_the_golden_one() -> None:
    disk = indexed_log(None)
    opened(disk)
    assert file_content(disk, INDEX_PATH) == golden(INDEX)
    summary, index = decode_index(golden(INDEX))
    assert [index[row].last_txid for row in range(len(index))] == LAST_TXIDS
    assert summary.last_txid == (1 << 63) - 1


def test_a_golden_index_is_believed_and_the_segment_is_not_read() -> None:
    log, read = scanned(indexed_log(INDEX))
    assert read == 0
    assert log.reader.segments[0].last_txid == (1 << 63) - 1
    assert offset_for_txid(log.reader, 1) == 5


def test_an_index_of_the_version_before_is_doubted_and_written_anew() -> None:
    disk = indexed_log(OLD)
    [problem] = inspect_segment(disk, SEGMENT).problems
    assert (problem.kind, problem.path) == (ProblemKind.DERIVED, INDEX_PATH)
    assert problem.description == "not an index of version 2"
    log, read = scanned(disk)
    assert read == len(golden(INDEXED))
    assert offset_for_txid(log.reader, 1) == 5
    assert file_content(disk, INDEX_PATH) == golden(INDEX)
    log.close()
    assert scanned(disk)[1] == 0
