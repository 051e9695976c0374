"""Few indexes stay in memory, however they got there."""

from envelope.types import Offset
from jetstream.log.segments.loaded_indexes import LOADED_MAX, LoadedIndexes
from jetstream.log.segments.segment import Segment
from tests.support.logs import SMALL, filled, opened
from tests.support.memory_disk import MemoryDisk

COUNT = 3 * LOADED_MAX


def sealed_segments(*, with_index_files: bool = True) -> list[Segment]:
    """Return segments of two batches each, none of them loaded."""
    disk = MemoryDisk()
    filled(disk, 2 * COUNT + 1).close()
    segments = list(opened(disk, SMALL).reader.segments[:-1])
    if not with_index_files:
        for segment in segments:
            disk.unlink(segment.index_path)
    assert len(segments) == COUNT
    assert not any(segment.index for segment in segments)
    return segments


def no_damage(start: Offset, end: Offset) -> None:
    raise AssertionError(f"[{start}, {end}) is not damaged")


def loaded(segments: list[Segment]) -> list[int]:
    return [number for number, segment in enumerate(segments) if segment.index is not None]


def test_the_newest_few_stay_whether_read_or_derived() -> None:
    for with_index_files in (True, False):
        segments = sealed_segments(with_index_files=with_index_files)
        indexes = LoadedIndexes(no_damage)
        for segment in segments:
            assert len(indexes.of(segment)) == 2
        assert loaded(segments) == list(range(COUNT - LOADED_MAX, COUNT))


def test_a_segment_counts_once() -> None:
    segments = sealed_segments()
    indexes = LoadedIndexes(no_damage)
    for segment in segments[:LOADED_MAX]:
        indexes.of(segment)
    for _ in range(COUNT):
        indexes.rescan(segments[0])
        indexes.of(segments[1])
    assert loaded(segments) == list(range(LOADED_MAX))


def test_what_is_derived_is_all_verified_and_what_is_read_is_not() -> None:
    first, second, *_ = sealed_segments()
    indexes = LoadedIndexes(no_damage)
    assert not any(indexes.of(first).verified)
    assert all(indexes.rescan(second).verified)
