import threading

import pytest

from envelope.errors import UnavailableError
from envelope.types import Offset
from jetstream.log.segments.segment import Segment, base_of, segment_path
from tests.support.memory_disk import MemoryDisk


def segment_on(disk: MemoryDisk) -> Segment:
    disk.mkdir("log")
    segment = Segment(disk, "log", Offset(42))
    disk.create(segment.path).close()
    return segment


def test_a_segment_is_named_by_its_base() -> None:
    assert segment_path("a/b", Offset(42)) == "a/b/00000000000000000042.arrows"
    assert base_of("00000000000000000042.arrows") == 42


@pytest.mark.parametrize(
    "name", ["42.arrows", "00000000000000000042.index", "checkpoint", "x0000000000000000042.arrows", ""]
)
def test_other_files_are_no_segments(name: str) -> None:
    assert base_of(name) is None


def test_the_file_is_open_while_somebody_holds_a_lease() -> None:
    segment = segment_on(MemoryDisk())
    seen = [segment.is_open]
    first, second = segment.acquire(), segment.acquire()
    assert first is second
    segment.release()
    seen.append(segment.is_open)
    segment.release()
    seen.append(segment.is_open)
    assert seen == [False, True, False]
    with pytest.raises(AssertionError, match="S1"):
        segment.release()


def test_a_retired_segment_gives_no_leases_and_closes_with_the_last_one() -> None:
    segment = segment_on(MemoryDisk())
    with segment.leased() as file:
        segment.retire()
        assert file.size() == 0
        with pytest.raises(UnavailableError):
            segment.acquire()
    assert not segment.is_open


def test_leases_are_counted_across_threads() -> None:
    segment = segment_on(MemoryDisk())

    def lease_often() -> None:
        for _ in range(300):
            with segment.leased() as file:
                file.size()

    threads = [threading.Thread(target=lease_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not segment.is_open
