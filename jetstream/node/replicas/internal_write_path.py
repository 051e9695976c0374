"""The write path of a stream that its leader writes by itself: writes → machine → disk → outcomes.

It decides nothing: `InternalWrites` gathers and settles, `Log` stores.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from envelope.errors import DiskFull, JetstreamError, StreamOffline
from envelope.types import Offset
from jetstream.ingest.own_writes import InternalWrites, Outcome, OwnRecord, OwnWrite
from jetstream.log.format.plain_batch import encode_records
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.replicas.leadership import LeaderDriver
from jetstream.node.replicas.parts import NodeServices, ReplicaContext

_log = logging.getLogger(__name__)


class InternalAppendPath:
    """Of one reign; the stream's `Appender`, and its `Publishers`.

    Attributes:
        settled: told of every outcome, in the order of the writes.
        ended: told once nothing more will be written or settled; what was not settled has no known outcome.
        suspended: why writes are refused now; None if they are not.
    """

    def __init__(self, parts: ReplicaContext, reign: LeaderDriver, services: NodeServices) -> None:
        self.settled: Callable[[Outcome], None] = lambda _: None
        self.ended: Callable[[], None] = lambda: None
        self.suspended: JetstreamError | None = None
        self._parts = parts
        self._reign = reign
        self._clock = services.clock
        self._group_commit = services.group_commit
        self._writes = InternalWrites(
            parts.config.subject, reign.leader_epoch, parts.log.log_end_offset, parts.opened.history
        )
        self._is_due = False
        self._in_flight = 0
        self._gave_up = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Writes that are in no append yet."""
        return self._writes.waiting

    @property
    def pending_acks(self) -> int:
        """Writes whose outcome is awaited."""
        return self._writes.unsettled

    def write(self, number: int, records: Sequence[OwnRecord]) -> None:
        """Have records stored together, behind those of all writes before; `settled` tells the outcome."""
        if self._gave_up:
            return
        self._writes.offer(OwnWrite(number, records))
        self._idle.clear()
        self._begin_if_wanted()

    def reconfigure(self) -> None:
        """Take a changed configuration in: there is nothing that would change."""

    def set_read_only(self, *, is_set: bool) -> None:
        """Take in that messages are refused: there are none."""
        del is_set

    async def drained(self) -> None:
        """Return when nothing waits and no group is in flight; no more is to be written."""
        self._writes.hurry()
        self._begin_if_wanted()
        await self._idle.wait()

    def stop(self) -> None:
        """Write nothing more and tell no outcome; what is in flight is waited for by `drained`."""
        self._end()
        if not self._in_flight:
            self._idle.set()

    # --- its reign's Publishers --------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """See `Publishers.committed`."""
        self._writes.committed(high_watermark)
        self._settle()
        self._begin_if_wanted()

    def suspend(self, reason: JetstreamError | None) -> None:
        """See `Publishers.suspend`."""
        self.suspended = reason
        self._writes.suspend(reason)
        self._begin_if_wanted()

    # --- groups (Appender) -----------------------------------------------------------------------

    def next_group(self) -> GroupAppend | None:
        """Gather what waits into one append; None if there is nothing, or all of it is refused."""
        self._is_due = False
        if not self._gave_up and self._writes.wants_group():
            now = self._clock.wall()
            append = self._writes.begin_group(now)
            if append is not None:
                self._in_flight += 1
                batches = encode_records(
                    append.records, append.base, append.leader_epoch, self._parts.config.compression
                )
                group = GroupAppend(self._parts.log, batches, now)
                group.stored = partial(self._parts.opened.note.appended, batches)
                if self._reign.is_replicated:
                    group.written = partial(self._reign.written, batches)
                return group
            self._settle()
        self._rest_if_done()
        return None

    def appended(self, append: GroupAppend) -> bool:
        """Take in how an append ended; tell whether the next group is due."""
        self._in_flight -= 1
        if self._gave_up:
            self.stop()
            return False
        error, name = append.error, self._parts.name
        if error is None:
            self._parts.upkeep.appended()
            self._writes.appended(append.end)
            self._reign.appended(append.end)
        elif isinstance(error, DiskFull | StreamOffline):
            _log.warning("append refused stream=%s error=%s", name, error)
            self._writes.append_refused(error)
        else:
            _log.error("stream offline stream=%s error=%r runbook=RB-01", name, error)
            self.give_up()
            return False
        self._settle()
        if self._is_due or self._gave_up:
            return False
        self._is_due = self._writes.wants_group()
        self._rest_if_done()
        return self._is_due

    def give_up(self) -> None:
        """Write and tell nothing any more: nobody knows what of the last append is stored."""
        self._end()
        self._idle.set()

    def _end(self) -> None:
        if not self._gave_up:
            self._gave_up = True
            self.ended()

    def _settle(self) -> None:
        for outcome in self._writes.settled():
            self.settled(outcome)

    def _begin_if_wanted(self) -> None:
        if not self._is_due and not self._gave_up and self._writes.wants_group():
            self._is_due = True
            self._group_commit.due(self)

    def _rest_if_done(self) -> None:
        if not self._writes.waiting and not self._in_flight:
            self._idle.set()
