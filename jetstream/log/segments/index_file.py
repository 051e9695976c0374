"""Reading and writing index files; a doubtful file is read as None: the segment is scanned."""

import contextlib

from envelope.errors import CorruptDataError, DiskFull, StorageError
from envelope.types import Offset
from jetstream.log.disk.port import Disk, File
from jetstream.log.disk.state_file import read_whole, replace_file
from jetstream.log.segments.index import (
    HEADER_BYTES,
    BatchIndex,
    IndexEntry,
    IndexSummary,
    decode_index,
    decode_summary,
)
from jetstream.log.segments.scan import FileWindow, read_batch


def read_summary(disk: Disk, path: str) -> IndexSummary | None:
    """Return the header of an index file, None if it is missing or fails its checksum."""
    if not disk.exists(path):
        return None
    file = disk.open(path)
    try:
        return decode_summary(file.read(0, HEADER_BYTES))
    except CorruptDataError:
        return None
    finally:
        file.close()


def read_index(disk: Disk, path: str, base: Offset, segment: File) -> BatchIndex | None:
    """Return the entries of an index file if they fit the segment with that base.

    They fit if they tile from its base on and the last one describes a good batch exactly.
    """
    content = _content(disk, path)
    if content is None:
        return None
    try:
        summary, index = decode_index(content)
        last = index[len(index) - 1]
        header, length = read_batch(FileWindow(segment, segment.size()), last.position)
    except CorruptDataError:
        return None
    fits = summary.base == base and IndexEntry.of(header, last.position, length, last.last_txid) == last
    return index if fits else None


def _content(disk: Disk, path: str) -> bytes | None:
    """Return the content of a file, None if it is missing: compaction removes it under its readers."""
    if not disk.exists(path):
        return None
    try:
        return read_whole(disk, path)
    except StorageError:
        if disk.exists(path):
            raise
        return None


def write_index(disk: Disk, path: str, index: BatchIndex, rows: int) -> None:
    """Write the index file of the first ``rows`` entries, not durably.

    A full disk is no failure: the file is derived, and a part of one is doubted.
    """
    with contextlib.suppress(DiskFull):
        replace_file(disk, path, index.encode(rows), durable=False)


def remove_index(disk: Disk, path: str) -> None:
    """Remove an index file, if it is there."""
    if disk.exists(path):
        disk.unlink(path)
