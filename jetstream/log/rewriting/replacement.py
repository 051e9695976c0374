"""The replacement of a sealed segment: written beside it, and synced.

Until `jetstream.log.log.Log.replace_segment` puts it there nothing has changed, and readers of the old file
go on. For any thread that may wait.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from envelope.errors import JetstreamError, StorageError
from envelope.limits import MIB
from envelope.types import Buffer, Compression
from jetstream.log.disk.port import Disk, File
from jetstream.log.disk.state_file import NEW_SUFFIX
from jetstream.log.format.batch import BatchHeader, encode_kept, with_header
from jetstream.log.format.schema import END_OF_STREAM, NO_RECORDS, SCHEMA_MESSAGE
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.segments.scan import FIRST_BATCH
from jetstream.log.segments.segment import Segment

_SYNC_BYTES: Final = 4 * MIB


@dataclass(frozen=True, slots=True)
class RewrittenSegment:
    """A segment's replacement: written and synced.

    Attributes:
        old: the segment it was made from.
        new: the replacement, at its temporary path, which the next opening removes if it stays.
        records: number of the old segment's records that it lacks.
    """

    old: Segment
    new: Segment
    records: int

    @property
    def bytes(self) -> int:
        """Bytes by which it is smaller."""
        return self.old.size - self.new.size

    def discard(self, disk: Disk) -> None:
        """Remove the file: it will not be put in place.

        Raises:
            StorageError: the disk refused; the next opening removes it.
        """
        assert self.new.temporary_path is not None, "it has taken the place"
        disk.unlink(self.new.temporary_path)


@dataclass(frozen=True, slots=True)
class ReplacementBatch:
    """A batch to be written.

    Attributes:
        header: its header.
        records: None: none are left.
        original: its bytes under ``original_header``, if they are to stay.
    """

    header: BatchHeader
    records: pa.RecordBatch | None
    original: memoryview | None = None
    original_header: BatchHeader | None = None

    def frame(self, codec: Compression) -> Buffer:
        """Return the finished batch."""
        if self.original is None:
            records = NO_RECORDS if self.records is None else self.records
            return encode_kept(records, self.header, codec)
        if self.header == self.original_header:
            return self.original
        return with_header(self.original, self.header)


def write_beside(
    disk: Disk, segment: Segment, pieces: Iterable[Sequence[ReplacementBatch]], codec: Compression
) -> Segment:
    """Write ``pieces``, which together cover a segment's range, beside it; durable on return.

    They are read some at a time, and synced every few megabytes: one sync of all would delay all other syncs.

    Raises:
        DiskFull: there is no space for it; its part is removed.
        StorageError, FsyncFailed: the disk refused; the next opening removes its part.
        JetstreamError: of ``pieces``.
    """
    path = segment.path + NEW_SUFFIX
    if disk.exists(path):  # left by a rewrite that was stopped
        disk.unlink(path)
    file = disk.create(path)
    try:
        return _write(Segment(disk, segment.directory, segment.base), segment, file, pieces, codec)
    except JetstreamError:
        with contextlib.suppress(StorageError):
            disk.unlink(path)
        raise
    finally:
        file.close()


def _write(
    new: Segment, old: Segment, file: File, pieces: Iterable[Sequence[ReplacementBatch]], codec: Compression
) -> Segment:
    new.temporary_path = new.path + NEW_SUFFIX
    file.write((SCHEMA_MESSAGE,), 0)
    position = synced = int(FIRST_BATCH)
    for some in pieces:
        frames: list[Buffer] = []
        start = position
        for piece in some:
            frame = piece.frame(codec)
            new.extend(piece.header, position, len(frame), last_txid_in(frame))
            position += len(frame)
            frames.append(frame)
        if frames:
            file.write(frames, start)
        if position - synced >= _SYNC_BYTES:
            file.sync()
            synced = position
    file.write((END_OF_STREAM,), position)
    file.sync()
    new.size, new.sealed = position + len(END_OF_STREAM), True
    assert (new.base, new.next) == (old.base, old.next), f"it ends at {new.next}"
    return new
