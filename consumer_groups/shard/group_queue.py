"""The queue of one group: requests to it and events around it, in order of arrival.

When a change of the group's state is refused, nothing of it has happened: the coordinator begins anew with
what is durable, as if another one had taken over, and all who wait are told the error.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from consumer_groups.assignment.partitions import GroupName, StreamPartitions
from consumer_groups.coordinator.events import (
    Assignment,
    Beat,
    ConnectionId,
    CoordinatorRefusal,
    HeartbeatAnswered,
    Join,
    MemberHeartbeat,
    PartitionsChanged,
    Tick,
)
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.shard.events import NO_NEWS, HeartbeatAnswer, QuestionId
from consumer_groups.shard.group_requests import GroupWriter, QueuedRequest
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.outbox import Outbox
from envelope.errors import JetstreamError, Overloaded
from envelope.limits import GROUP_WAITING_MAX
from envelope.types import MonotonicNs, StreamName, TimestampUs

REFUSED_PAUSE_NS: Final = 1_000_000_000
"""After a write was refused, what nobody has asked for is not tried again for so long."""

Known = Mapping[StreamName, StreamPartitions]


class _Waiting(NamedTuple):
    question: QuestionId | None
    request: QueuedRequest


class GroupRun:
    """Runs one group.

    Invariants:
        H3: what is said of a group's state is durable.
    """

    def __init__(
        self, name: GroupName, table: GroupTable, known: Known, outbox: Outbox, now: MonotonicNs
    ) -> None:
        """Begin with what is durable; ``known`` are the streams that exist, and changes."""
        self.name = name
        self._desk = GroupWriter(name, table, outbox, now)
        self._known, self._outbox = known, outbox
        self._queue: deque[_Waiting] = deque()
        self._deleted: set[StreamName] = set()
        self._is_outdated = self._tick_waits = False
        self._quiet_until = now

    @property
    def timer_at(self) -> MonotonicNs:
        """When it is to be ticked; `NEVER` as long as a tick waits already."""
        if self._tick_waits:
            return NEVER
        at = self._desk.timer_at
        return min(at, self._quiet_until) if self._deleted or self._is_outdated else at

    @property
    def streams(self) -> frozenset[StreamName]:
        """Streams that members subscribe to, or own a partition of."""
        return self._desk.streams

    @property
    def is_idle(self) -> bool:
        """Nothing is lost if it is dropped."""
        return not (self._desk.coordinator.state.members or self._queue or self._desk.under_way)

    # --- heartbeats ------------------------------------------------------------------------------------

    def beat(self, connection: ConnectionId, beats: tuple[Beat, ...], now: MonotonicNs) -> HeartbeatAnswer:
        """Take in that members are alive; return what they have not heard and may hear."""
        (answered,) = self._desk.coordinator.handle(MemberHeartbeat(connection, beats), now)
        assert isinstance(answered, HeartbeatAnswered), f"{answered} to a heartbeat"
        if not (answered.assignments or answered.refused) or not self._desk.is_durable:
            return NO_NEWS  # H3: some of it may not be durable
        return HeartbeatAnswer(
            tuple((self.name, assignment) for assignment in answered.assignments),
            tuple((self.name, member_id, refusal) for member_id, refusal in answered.refused),
        )

    def news(self, beats: Iterable[Beat]) -> HeartbeatAnswer:
        """Return what members that beat before have not heard and may hear."""
        if not self._desk.is_durable:
            return NO_NEWS
        found = [(beat.member_id, self._desk.coordinator.news(beat)) for beat in beats]
        return HeartbeatAnswer(
            tuple((self.name, news) for _, news in found if isinstance(news, Assignment)),
            tuple(
                (self.name, member_id, news)
                for member_id, news in found
                if isinstance(news, CoordinatorRefusal)
            ),
        )

    # --- events: `go_on` is to follow ------------------------------------------------------------------

    def ask(self, question: QuestionId | None, request: QueuedRequest) -> None:
        """Take in what somebody wants."""
        if len(self._queue) + self._desk.under_way >= GROUP_WAITING_MAX:
            text = f"{GROUP_WAITING_MAX} requests of group {self.name!r} wait"
            self._outbox.refuse(question, Overloaded(text))
            return
        self._queue.append(_Waiting(question, request))

    def stream_deleted(self, name: StreamName) -> None:
        """Take in that a stream does not exist any more; it may be made again."""
        self._deleted.add(name)

    def stream_changed(self) -> None:
        """Take in that more, or something else, is known of its streams."""
        self._is_outdated = True

    def tick(self) -> None:
        """Take in that the time of `timer_at` has come."""
        self._tick_waits = True

    def written(self, at: TimestampUs, now: MonotonicNs) -> None:
        """Take in that the write that is under way for longest is committed."""
        self._desk.written(at, now)

    def refused(self, error: JetstreamError, now: MonotonicNs) -> None:
        """Take in that nothing is stored of the write that is under way for longest."""
        failed = self._desk.refused(error, now)
        if not failed.has_state:
            return
        for waiting in self._queue:
            self._outbox.refuse(waiting.question, error)
        self._queue.clear()
        self._deleted |= failed.deleted
        self._is_outdated = True
        self._quiet_until = MonotonicNs(now + REFUSED_PAUSE_NS)

    # --- what follows ----------------------------------------------------------------------------------

    def go_on(self, now: MonotonicNs) -> None:
        """Do what waits, as far as that can be done now."""
        while not self._desk.is_held and self._step(now):
            pass

    def _step(self, now: MonotonicNs) -> bool:
        """Do what is next; tell whether there was something that can be done."""
        if (self._deleted or self._is_outdated) and (self._queue or now >= self._quiet_until):
            self._update_streams(now)
            return True
        if self._queue:
            return self._serve(now)
        if self._tick_waits:
            self._tick_waits = False
            if now >= self._desk.timer_at:
                self._desk.timer_at = NEVER
                self._desk.give(Tick(), now)
            return True
        return False

    def _update_streams(self, now: MonotonicNs) -> None:
        """Report deleted streams first: a stream may exist again."""
        if self._deleted:
            deleted = frozenset(self._deleted)
            self._deleted.clear()
            self._desk.give(PartitionsChanged((), tuple(sorted(deleted))), now, deleted=deleted)
        else:
            self._is_outdated = False
            self._desk.give(self._partitions_of(self.streams), now)

    def _serve(self, now: MonotonicNs) -> bool:
        question, request = self._queue[0]
        if not self._desk.can_serve(request):
            return False
        if isinstance(request, Join):
            # Nobody may have subscribed to these before, and what became of them was not told then.
            missing = tuple(sorted(request.streams - self._known.keys()))
            self._desk.give(self._partitions_of(request.streams, missing), now)
            if self._desk.is_held:
                return True
        self._queue.popleft()
        self._desk.serve(question, request, now)
        return True

    def _partitions_of(
        self, streams: Iterable[StreamName], deleted: tuple[StreamName, ...] = ()
    ) -> PartitionsChanged:
        changed = tuple(self._known[name] for name in sorted(streams) if name in self._known)
        return PartitionsChanged(changed, deleted)
