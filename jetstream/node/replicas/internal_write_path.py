"""The write path of a stream that its leader writes by itself: writes → machine → disk → outcomes.

It decides nothing: `InternalWrites` gathers and settles, `AppendLoop` appends.
"""

from collections.abc import Callable, Sequence

from envelope.errors import JetstreamError
from envelope.types import Offset, TimestampUs
from jetstream.ingest.internal_writes import InternalWrite, InternalWrites, Outcome, OwnRecord
from jetstream.ingest.machine import AppendRecords
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.replicas.append_loop import AppendLoop
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.leadership import LeaderDriver


class InternalAppendPath:
    """The stream's `Publishers` and `GroupSource` for one reign.

    Attributes:
        settled: called with every outcome, in the order of the writes.
        appends: once it has ended nothing more is settled; what was not settled has no known outcome.
        suspended: why writes are refused now; None if they are not.
    """

    def __init__(self, context: ReplicaContext, driver: LeaderDriver, services: NodeServices) -> None:
        self.settled: Callable[[Outcome], None] = lambda _: None
        self.suspended: JetstreamError | None = None
        self._writes = InternalWrites(
            context.config.subject, driver.leader_epoch, context.log.log_end_offset, context.opened.history
        )
        self.appends = AppendLoop(self, context, driver, services)

    @property
    def waiting(self) -> int:
        """Writes that are in no append yet."""
        return self._writes.waiting

    @property
    def pending_acks(self) -> int:
        """Writes whose outcome is awaited."""
        return self._writes.unsettled

    def write(self, number: int, records: Sequence[OwnRecord]) -> None:
        """Store records together, behind those of all writes before; `settled` is called with the outcome."""
        if self.appends.has_ended:
            return
        self._writes.offer(InternalWrite(number, records))
        self.appends.begin_if_wanted()

    def reconfigure(self) -> None:
        """Do nothing: no setting changes how the node itself writes."""

    def set_read_only(self, *, is_set: bool) -> None:
        """Do nothing: there are no messages to refuse."""
        del is_set

    # --- its reign's Publishers --------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """See `Publishers.committed`."""
        self._writes.committed(high_watermark)
        self._settle()
        self.appends.begin_if_wanted()

    def suspend(self, reason: JetstreamError | None) -> None:
        """See `Publishers.suspend`."""
        self.suspended = reason
        self._writes.suspend(reason)
        self.appends.begin_if_wanted()

    # --- groups (GroupSource) ----------------------------------------------------------------------

    def wants_group(self, others_in_flight: int) -> bool:
        """Return whether the writes that wait are due; other streams do not matter."""
        del others_in_flight
        return self._writes.wants_group()

    def begin_group(self, now: TimestampUs) -> AppendRecords | None:
        """Gather the writes that wait into one append; None if all of them are refused."""
        append = self._writes.begin_group(now)
        if append is None:
            self._settle()
            return None
        return AppendRecords(append.records, append.base, append.leader_epoch)

    def appended(self, append: GroupAppend) -> None:
        """See `GroupSource.appended`."""
        self._writes.appended(append.end)
        self._settle()

    def append_refused(self, error: JetstreamError) -> None:
        """See `GroupSource.append_refused`."""
        self._writes.append_refused(error)
        self._settle()

    def append_unknown(self, error: JetstreamError) -> None:
        """End the path: an outcome that is not known settles nothing."""
        del error
        self.appends.give_up()

    def hurry(self) -> None:
        """Let no write gather from now on."""
        self._writes.hurry()

    def _settle(self) -> None:
        for outcome in self._writes.settled():
            self.settled(outcome)
