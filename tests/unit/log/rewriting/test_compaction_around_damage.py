"""A damaged batch does not stop compaction of the rest of its log, and nothing goes that must stay for it."""

from dataclasses import replace

import pytest

from envelope.errors import CorruptDataError
from envelope.types import Offset
from jetstream.log.format.batch import iter_frames, verified_batches
from jetstream.log.log import Log
from jetstream.log.rewriting.compaction_plan import Detour
from jetstream.log.rewriting.segment_chunks import check_segment
from tests.support.compaction import COMPACTED, EAGER, append_records, compact_around, no_pace, stored_in
from tests.support.logs import NOW, Record, begun, file_content, flipped, overwrite
from tests.support.memory_disk import MemoryDisk

WAIT = EAGER.tombstone_retention_us
CONFIG = replace(COMPACTED, segment_bytes=3000)
SEGMENT = 2
"""Batches in one, of a record each."""


def written(disk: MemoryDisk, *keys: str) -> Log:
    """A log with a batch for each key; a tombstone where it is in capitals."""
    log = begun(disk, CONFIG)
    for turn, key in enumerate(keys):
        value = None if key.isupper() else b"%d" % turn
        append_records(log, [Record(value, key=key.lower().encode(), timestamp=NOW + turn)])
    assert [segment.base for segment in log.reader.segments] == list(range(0, len(keys), SEGMENT))
    return log


def damaged(disk: MemoryDisk, log: Log, offset: int) -> bytes:
    """Damage the batch at ``offset``; return the file as it was."""
    found = log.reader.locate(Offset(offset))
    good = file_content(disk, found.segment.path)
    overwrite(disk, found.segment.path, flipped(good, found.entry.end - 40, 3))
    with pytest.raises(CorruptDataError):
        check_segment(log.reader, found.segment, no_pace)
    assert log.reader.damaged == {found.segment.base}
    return good


def repaired(log: Log, good: bytes) -> None:
    """Put the damaged batch back."""
    [hole] = log.holes()
    assert hole.length is not None
    log.fill(hole, verified_batches(good[hole.position : hole.position + hole.length]))
    assert not log.reader.damaged


def left(log: Log) -> list[int]:
    """Return the offsets of all records that can be read."""
    found: list[int] = []
    for segment in log.reader.segments:
        if segment.base not in log.reader.damaged and segment.next > segment.base:
            for frame in iter_frames(log.reader.read(segment.base, 1 << 20, segment.next)):
                found.extend(stored_in(frame)[1])
    return found


def compacted(disk: MemoryDisk, log: Log, passes: int, detours: list[Detour]) -> int:
    """Do passes with the wait of tombstones before each; return how many were due."""
    start = int(log.compaction.waiting_since) or int(NOW)
    return sum(compact_around(disk, log, start + turn * WAIT, detours) for turn in range(1, passes + 1))


def test_what_is_before_and_behind_a_damaged_batch_is_compacted() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"abababababab")
    damaged(disk, log, 4)
    content = file_content(disk, log.reader.segments[2].path)
    assert compact_around(disk, log, NOW, detours)
    assert left(log) == [8, 9, 10, 11]
    assert file_content(disk, log.reader.segments[2].path) == content, "the damaged one stays as it is"
    assert log.compaction.cleaned_end == 4, "the clean part ends where it begins"
    assert log.failed is None


def test_what_was_compacted_around_damage_is_not_compacted_again_and_again() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"abababababab")
    log.writer.config = replace(CONFIG, compaction=replace(EAGER, age_us=0))
    damaged(disk, log, 4)
    late = NOW + 10**9
    assert compact_around(disk, log, late, detours)
    assert not compact_around(disk, log, late, detours)
    for turn in range(4):
        append_records(log, [Record(b"more", key=b"c", timestamp=NOW + 100 + turn)])
    assert compact_around(disk, log, late, detours), "what has come since is compacted"
    assert not compact_around(disk, log, late, detours)


def test_the_last_readable_record_of_a_key_stays_if_a_newer_one_cannot_be_read() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"kakbccdd")
    good = damaged(disk, log, 2)
    assert compact_around(disk, log, NOW, detours)
    assert 0 in left(log)
    repaired(log, good)
    assert compact_around(disk, log, NOW, detours)
    assert left(log)[:3] == [1, 2, 3], "and goes once it can be"


def test_a_tombstone_stays_while_what_it_deletes_cannot_be_read() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"abkcKdefgh")
    good = damaged(disk, log, 2)
    compacted(disk, log, 5, detours)
    assert 4 in left(log)
    repaired(log, good)
    assert compacted(disk, log, 5, detours)
    assert left(log) == [0, 1, 3, 5, 6, 7, 8, 9], "first the value goes, then the tombstone"


def test_a_tombstone_below_all_damage_goes() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"kaKbccdeee")
    damaged(disk, log, 6)
    compacted(disk, log, 5, detours)
    assert 2 not in left(log)


def test_damage_found_in_the_clean_part_keeps_its_tombstones() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"abkcKdefgh")
    assert compact_around(disk, log, NOW, detours)
    assert log.compaction.waiting_end == 8
    damaged(disk, log, 0)
    assert not compacted(disk, log, 5, detours)
    assert (4 in left(log), log.compaction.cleaned_end) == (True, 8)


def test_after_a_cut_what_follows_is_compacted_around_damage_anew() -> None:
    disk, detours = MemoryDisk(), list[Detour]()
    log = written(disk, *"abababababab")
    damaged(disk, log, 2)
    assert compact_around(disk, log, NOW, detours)
    log.truncate_to(Offset(10))
    for key in b"ababab":
        append_records(log, [Record(b"new", key=bytes([key]), timestamp=NOW + 100)])
    assert compact_around(disk, log, NOW, detours)
    assert left(log) == [12, 13, 14, 15]
    assert log.compaction.cleaned_end == 2
