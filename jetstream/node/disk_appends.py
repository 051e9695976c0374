"""What streams have to be appended: a leader's group, and what a follower got of its leader.

Each is written by the disk thread, or by the event loop where that is only a short write (`DiskThread`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envelope.errors import DiskFull, JetstreamError
from envelope.types import NO_OFFSET, Buffer, Offset, TimestampUs
from jetstream.log.format.batch import SealedBatch, UnsealedBatch, verified_batches
from jetstream.log.log import Log
from jetstream.node.log_note import decode_note
from jetstream.node.recovery import OpenedLog


@dataclass(slots=True, eq=False)
class GroupAppend:
    """One stream's group on its way to the disk.

    Attributes:
        log: where to.
        batches: to be appended all or none and, where the log's mode is ``always``, synced.
        now: wall clock.
        error: the outcome, once there is one: None if the batches are as durable as the mode promises,
            `DiskFull` if they were undone, `StreamOffline` if the log had failed before and nothing was
            tried, any other error if the outcome is unknown and the log has failed for good.
        written: called on the loop once the batches are written, before they are synced; not if they are
            refused.
        stored: called once, never beside other work on the log, when the outcome is that the batches are
            stored.
    """

    log: Log
    batches: Sequence[UnsealedBatch]
    now: TimestampUs
    error: JetstreamError | None = None
    written: Callable[[], None] | None = None
    stored: Callable[[], None] | None = None

    @property
    def base(self) -> Offset:
        """Offset of the first record."""
        return self.batches[0].base

    @property
    def end(self) -> Offset:
        """Offset after the last record."""
        return self.batches[-1].next

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.end - self.base

    @property
    def size(self) -> int:
        """Bytes to be written."""
        return sum(batch.size for batch in self.batches)

    @property
    def is_followed(self) -> bool:
        """Whether other replicas await it."""
        return self.written is not None

    def only_writes(self) -> bool:
        """Tell whether `write` will be one write and nothing else that a disk is asked for."""
        return self.log.only_writes(self.batches, self.now)

    def write(self) -> None:
        """Write to the log; never beside other work on it."""
        if self.base != self.log.log_end_offset:
            raise _refused_behind(self.log)
        self.log.append_group(self.batches, self.now)


@dataclass(slots=True, eq=False)
class FollowerAppend:
    """A leader's batches on their way to a follower's disk.

    Attributes:
        opened: the log; it takes in what it has learnt once the outcome is told.
        data: whole batches, as `verified_batches` takes them.
        now: wall clock.
        high_watermark: below it nothing will be cut.
        committed: the leader's high watermark when it sent them.
        error: as `GroupAppend.error`, and `CorruptDataError` if the batches are damaged or do not follow the
            log; nothing was stored then. With `DiskFull` the log may have the first of the batches.
        note: the leader's, of committed records of which some may be gone; empty if there is none.
        written: as `GroupAppend.written`.
        batches: what is in ``data``, once it is verified; not all of them are stored where ``error`` says so.
        records: how many were written.
    """

    opened: OpenedLog
    data: Buffer
    now: TimestampUs
    high_watermark: Offset = NO_OFFSET
    committed: Offset = NO_OFFSET
    note: bytes = b""
    error: JetstreamError | None = None
    written: Callable[[], None] | None = None
    batches: Sequence[SealedBatch] = ()
    records: int = 0

    @property
    def log(self) -> Log:
        """Where to."""
        return self.opened.log

    @property
    def size(self) -> int:
        """Bytes to be written."""
        return len(self.data)

    @property
    def is_followed(self) -> bool:
        """See `GroupAppend.is_followed`: its leader does."""
        return True

    def only_writes(self) -> bool:
        """See `GroupAppend.only_writes`."""
        try:
            self.batches = verified_batches(self.data)
        except JetstreamError:
            return False  # `write` will say why
        return not self.note and not self.opened.is_stale and self.log.only_writes_sealed(self.batches)

    def write(self) -> None:
        """Write to the log; never beside other work on it."""
        self.opened.refresh()
        log_end_offset = self.log.log_end_offset
        self.batches = self.batches or verified_batches(self.data)
        if self.batches and self.batches[0][0].base > log_end_offset:
            raise _refused_behind(self.log)
        if self.note:
            self.opened.take_note(decode_note(self.note))
        try:
            self.log.append_sealed(self.batches, self.now)
        finally:
            self.records = self.log.log_end_offset - log_end_offset

    def learn(self) -> None:
        """Let the log take in what was stored of the batches."""
        self.opened.absorb(self.batches)
        self._learn_committed()

    def pass_over(self) -> bool:
        """Do as `learn` if that takes no time; say False, and do nothing, if it does."""
        is_done = self.opened.pass_over(self.batches)
        if is_done:
            self._learn_committed()
        return is_done

    def _learn_committed(self) -> None:
        history = self.opened.history
        history.committed(min(self.high_watermark, history.end), self.now)
        # What was committed when it came has been so for as long as its timestamps say.
        history.committed(min(self.committed, history.end), history.last_timestamp)


AnyAppend = GroupAppend | FollowerAppend


def _refused_behind(log: Log) -> JetstreamError:
    """Return why nothing is appended behind what is not there."""
    return log.failed or DiskFull("the group before this one was refused")
