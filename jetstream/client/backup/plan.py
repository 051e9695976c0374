"""Decisions of a backup: which records are to be read, and where batches are cut into objects; pure.

An object ends where a segment does, or before the batch that would make it larger than `OBJECT_BYTES`. So a
segment that is read once more from its beginning is cut into the same objects, if it has the same bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from envelope.errors import RemoteProtocolError
from envelope.limits import MIB
from envelope.types import Compact, Offset
from jetstream.log.format.batch import BatchFlags, BatchHeader, SealedBatch
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.state.epochs import EpochStart
from jetstream.tier.backups.manifest import BackedUpStream, BackupObject
from metadata.stream_config import StreamConfig

OBJECT_BYTES: Final = 64 * MIB
_AROUND: Final = len(SCHEMA_MESSAGE) + len(END_OF_STREAM)


class RangeMerged(Exception):
    """The next batch begins before the end of the last one: the node has merged batches since.

    Attributes:
        base: where it begins.
    """

    def __init__(self, base: Offset) -> None:
        super().__init__(f"a batch begins at {base}")
        self.base = base


@dataclass(slots=True)
class CutObject:
    """An object to be stored, ``[base, next)``; ``pieces`` are its batches."""

    base: Offset
    next: Offset
    begins_segment: bool
    epochs: list[EpochStart] = field(default_factory=list)
    pieces: list[memoryview] = field(default_factory=list)
    size: int = _AROUND

    def described(self, sha256: str) -> BackupObject:
        """Return it as a manifest names it, under the hash of its bytes."""
        return BackupObject(
            sha256=sha256,
            size=self.size,
            base=self.base,
            next=self.next,
            epochs=tuple(self.epochs),
            begins_segment=self.begins_segment,
        )

    def chunks(self) -> list[bytes | memoryview]:
        """Return all of its bytes, in order."""
        return [SCHEMA_MESSAGE, *self.pieces, END_OF_STREAM]


class ObjectCut:
    """Takes batches one after the other, and returns objects as they are complete.

    Attributes:
        position: offset after the last batch.
    """

    def __init__(self, position: Offset, *, is_first: bool) -> None:
        """Go on at ``position``; the first batch of all, only, may begin before it."""
        self.position = position
        self._is_first = is_first
        self._open: CutObject | None = None

    def add(self, body: memoryview, batches: Iterable[SealedBatch]) -> list[CutObject]:
        """Add batches, which ``body`` is made of; return the objects that are complete now.

        Raises:
            RangeMerged: the first of them begins before the position; nothing was added.
            RemoteProtocolError: it begins behind it.
        """
        complete: list[CutObject] = []
        begun = end = 0
        for header, frame in batches:
            self._check(header)
            length = len(frame)
            if self._open is None or self._ends_before(header, end - begun + length):
                self._add_piece(body[begun:end])
                begun = end
                complete += self.finish()
                begins_segment = BatchFlags.ROLL in header.flags
                self._open = CutObject(header.base, header.next, begins_segment)
            end += length
            self._open.next = header.next
            if not self._open.epochs or self._open.epochs[-1].epoch != header.leader_epoch:
                self._open.epochs.append(EpochStart(header.leader_epoch, header.base, header.max_timestamp))
            self.position = header.next
        self._add_piece(body[begun:end])
        return complete

    def finish(self) -> list[CutObject]:
        """Return the object that is not complete, if there is one, as it is."""
        unfinished, self._open = self._open, None
        return [] if unfinished is None else [unfinished]

    def _check(self, header: BatchHeader) -> None:
        is_first, self._is_first = self._is_first, False
        if header.base == self.position or (is_first and header.base < self.position < header.next):
            return
        if header.base < self.position:
            raise RangeMerged(header.base)
        raise RemoteProtocolError(f"wanted offset {self.position}, got the batch at {header.base}")

    def _ends_before(self, header: BatchHeader, waiting: int) -> bool:
        assert self._open is not None, "an object is begun"
        return BatchFlags.ROLL in header.flags or self._open.size + waiting > OBJECT_BYTES

    def _add_piece(self, piece: memoryview) -> None:
        if self._open is not None and len(piece):
            self._open.pieces.append(piece)
            self._open.size += len(piece)


def reusable(
    before: BackedUpStream | None, config: StreamConfig, start: Offset, end: Offset
) -> tuple[BackupObject, ...]:
    """Return the objects of an earlier backup that are good for ``[start, end)`` now, from its start on.

    Of a stream that is or was compacted none are: the records that are left may say less than those that
    have gone since did, as a deletion that nobody has in the end.
    """
    if before is None or Compact.KEY in (before.config.compact, config.compact):
        return ()
    if not before.start <= start <= before.end <= end:
        return ()
    return tuple(each for each in before.objects if each.next > start)


def ending_by(objects: Iterable[BackupObject], base: Offset) -> tuple[BackupObject, ...]:
    """Return the objects up to ``base``, at which a batch begins that holds the end of the last one."""
    return tuple(each for each in objects if each.next <= base)


def complete_sets(copied: Sequence[BackedUpStream], wanted: Iterable[StreamConfig]) -> list[BackedUpStream]:
    """Return what was copied, by name; of a partitioned stream that lost partitions meanwhile none."""
    names = {stream.name for stream in copied}
    deleted = {config.partition_of for config in wanted if config.name not in names} - {None}
    return sorted(
        (stream for stream in copied if stream.config.partition_of not in deleted),
        key=lambda stream: stream.name,
    )
