"""The end of a log: writing, rolling and cutting its last segment."""

from collections.abc import Sequence
from typing import Final

from envelope.errors import DiskFull, StorageError
from envelope.types import Buffer, Offset, TimestampUs
from jetstream.log.disk.port import Disk, File
from jetstream.log.format.batch import UnsealedBatch
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.segments.index import Covered
from jetstream.log.segments.index_file import remove_index
from jetstream.log.segments.log_config import LogConfig
from jetstream.log.segments.retention import is_expired, is_overfull, is_worth_sealing, record_times
from jetstream.log.segments.scan import FIRST_BATCH
from jetstream.log.segments.segment import Segment

Written = tuple[Covered, Buffer, int | None]
"""A finished batch: its header, its bytes, and its largest transaction id."""

_TAKES_APPENDS: Final = "the log takes appends"


class SegmentWriter:
    """Writes, seals and cuts the active segment's file, on the disk thread.

    Attributes:
        segment: the active one; sealed only between `seal` and `start`, and after a damaged end.
        file: its file; None if nothing can be appended.
        begun_at: wall clock when this node first appended to it as leader, None before that.
    """

    __slots__ = ("_directory", "_disk", "begun_at", "file", "segment")

    def __init__(self, disk: Disk, directory: str, segment: Segment, file: File | None) -> None:
        """Own ``segment`` and its open file."""
        self._disk = disk
        self._directory = directory
        self.file = file
        self.segment = segment
        self.begun_at: TimestampUs | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the active segment holds no batch."""
        return self.segment.next == self.segment.base

    def roll_due(self, batches: Sequence[UnsealedBatch], now: TimestampUs, config: LogConfig) -> bool:
        """Return whether ``batches``, which are written together, must begin a new segment.

        Records whose time falls do: within a segment it never does. The age of a segment whose first record
        was ahead of the clock counts from the first append.
        """
        segment = self.segment
        if segment.sealed or segment.next == segment.base:
            return segment.sealed
        size = segment.size
        for batch in batches:
            size += batch.size
        if size > config.segment_bytes or batches[0].max_timestamp < segment.max_timestamp:
            return True
        assert segment.index is not None, "the active segment's index is loaded"
        first_at = min(segment.index.timestamps[0], self.begun_at or now)
        return config.segment_age_us is not None and now - first_at >= config.segment_age_us

    def expired(self, now: TimestampUs, config: LogConfig) -> bool:
        """Return whether all records of the active segment are too old to keep."""
        return not self.is_empty and is_expired(record_times((self.segment,), now)[0], now, config)

    def is_overfull(self, config: LogConfig) -> bool:
        """Return whether the active segment alone is more than retention by bytes or messages keeps."""
        return not self.segment.sealed and is_overfull(self.segment, config)

    def holds_up(self, start: Offset, config: LogConfig) -> bool:
        """Return whether so much of the active segment is below ``start`` that a new one should begin."""
        segment = self.segment
        if self.is_empty or segment.next <= start or segment.sealed:
            return not self.is_empty and segment.next <= start
        assert segment.index is not None, "the active segment's index is loaded"
        return is_worth_sealing(segment.index.end_below(start), config)

    def write(self, batches: Sequence[Written]) -> None:
        """Append finished batches with one call; a new segment begins with the schema message.

        Raises:
            DiskFull: undone, durably.
            StorageError, FsyncFailed: what is on disk is unknown.
        """
        segment = self.segment
        file = self.file
        assert file is not None, _TAKES_APPENDS
        assert not segment.sealed, "nothing follows the end-of-stream marker"
        buffers: list[Buffer] = [] if segment.size else [SCHEMA_MESSAGE]
        position = segment.size or FIRST_BATCH
        for _, frame, _ in batches:
            buffers.append(frame)
        try:
            file.write(buffers, segment.size)
        except DiskFull:
            self._undo(file)
            raise
        for batch, frame, txid in batches:
            segment.extend(batch, position, len(frame), txid)
            position = segment.data_end

    def seal(self) -> None:
        """End the active segment; returns when all of it is durable.

        Raises:
            DiskFull: undone, durably.
            StorageError, FsyncFailed: what is on disk is unknown.
        """
        segment, file = self.segment, self.file
        assert file is not None, _TAKES_APPENDS
        try:
            file.write([END_OF_STREAM], segment.size)
        except DiskFull:
            self._undo(file)
            raise
        segment.size += len(END_OF_STREAM)
        file.sync()
        segment.sealed = True
        assert segment.index is not None, "the active segment's index is loaded"
        segment.save_index(len(segment.index))

    def unseal(self) -> None:
        """Remove the active segment's end-of-stream marker; durable with the next batch."""
        segment = self.segment
        assert self.file is not None, _TAKES_APPENDS
        self.file.truncate(segment.data_end)
        segment.size, segment.sealed = segment.data_end, False

    def start(self, base: Offset) -> Segment:
        """Create the segment that begins at ``base`` and make it the active one; its name is durable.

        Raises:
            DiskFull: nothing has changed.
            StorageError, FsyncFailed: it may exist.
        """
        assert self.segment.sealed, "the active segment is sealed first"
        segment = Segment(self._disk, self._directory, base)
        file = self._disk.create(segment.path)
        try:
            self._disk.sync_dir(self._directory)
        except StorageError:
            file.close()
            raise
        self.close()
        self.segment, self.file, self.begun_at = segment, file, None
        return segment

    def cut(self, segments: tuple[Segment, ...], left: tuple[Segment, ...], file: File) -> None:
        """Cut the files of ``segments`` down to ``left``, durably; the last of those becomes active.

        Its ``file`` belongs to the writer now.

        Raises:
            StorageError, FsyncFailed: some of it may be cut.
        """
        self.close()
        self.file = file
        for segment in reversed(segments[len(left) :]):
            # One after the other from the end: after a crash no hole is left that would read as damage.
            remove(self._disk, segment)
            self._disk.sync_dir(self._directory)
        segments[len(left) - 1].retire(is_replaced=True)
        self.segment, self.begun_at = (segment := left[-1]), None
        remove_index(self._disk, segment.index_path)
        self._disk.sync_dir(self._directory)
        file.truncate(segment.size)
        file.sync()

    def close(self) -> None:
        """Close the file; again is allowed."""
        if self.file is not None:
            file, self.file = self.file, None
            file.close()

    def _undo(self, file: File) -> None:
        """Cut off what a refused write left, so that the refusal is definite."""
        try:
            file.truncate(self.segment.size)
            file.sync()
        except DiskFull as error:
            raise StorageError("a write that the disk had no space for could not be undone") from error


def left_of(segments: tuple[Segment, ...], offset: Offset) -> tuple[Segment, ...]:
    """Return the segments without the batches from ``offset`` on; at least one segment.

    No other one is empty: the writer of the next batch decides whether it begins a segment. Raises as
    `Segment.cut`.
    """
    kept = [segments[0], *(segment for segment in segments[1:] if segment.base < offset)]
    return (*kept[:-1], kept[-1].cut(offset))


def remove(disk: Disk, segment: Segment) -> None:
    """Remove a segment's files; readers keep what they hold."""
    segment.retire()
    remove_index(disk, segment.index_path)
    disk.unlink(segment.path)
