"""Counts the stored batches of a node: records divided by batches is the size of its commit groups."""

import mmap
from pathlib import Path

from jetstream.log.format.batch import iter_frames
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE

SEGMENT_PATTERN = "*.arrows"


def count_batches(data: Path) -> int:
    """Walk the frames of every segment under ``data``; an incomplete last one is not counted.

    Raises:
        CorruptDataError: a segment holds something else between its batches.
    """
    return sum(_batches_of(path) for path in data.rglob(SEGMENT_PATTERN))


def _batches_of(segment: Path) -> int:
    with segment.open("rb") as file:
        if segment.stat().st_size <= len(SCHEMA_MESSAGE):
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            sealed = bytes(view[-len(END_OF_STREAM) :]) == END_OF_STREAM
            end = len(view) - len(END_OF_STREAM) if sealed else len(view)
            with view[:end] as batches:
                return _count(batches)


def _count(batches: memoryview) -> int:
    count = 0
    for frame in iter_frames(batches, len(SCHEMA_MESSAGE)):
        frame.release()
        count += 1
    return count
