"""The coordinators of all groups of one shard, as long as one node leads it: one machine, one log.

Theory of operation. The durable part of a group (its state, its cursors) is records of the shard's log, and
all that is asked of groups becomes writes to it, in one order. The node that may append to that log is the
coordinator; one that was deposed has none of its writes committed, and so grants nothing. A group that has
members is run by a `GroupRun`; others are rows of the table, and are run while they are asked.

Requests that only read (cursors, descriptions) are answered with what is durable: an owner that is notified
of its grant after the write that made it then finds all that was committed before.

Groups without members keep their generation, and so do their cursors, for good. When the shard is full, those
that have neither members nor cursors make room, the one that is empty for longest first.

Questions about a shard are answered from what is durable (`fetched`, `described`, `listed`).
"""

from collections.abc import Iterable
from itertools import chain
from typing import assert_never

from consumer_groups.assignment.partitions import GroupName, Partition, StreamPartitions
from consumer_groups.coordinator.events import Beat, ConnectionId, CoordinatorRefusal, Join, Tick
from consumer_groups.coordinator.fencing import member_refusal
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.shard.alarms import Alarms
from consumer_groups.shard.events import (
    NO_NEWS,
    Asked,
    Beats,
    ConnectionClosed,
    CursorsFound,
    DeleteGroup,
    DescribeGroup,
    GroupDescription,
    GroupOverview,
    GroupsFound,
    HeartbeatAnswer,
    Listed,
    LookUpCursors,
    ResetCursors,
    ShardAction,
    ShardEvent,
    ShardWritten,
    StreamsChanged,
    WriteRefused,
)
from consumer_groups.shard.group_queue import GroupRun
from consumer_groups.shard.group_requests import QueuedRequest
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.heartbeats import Parked, ParkedHeartbeats
from consumer_groups.shard.outbox import Outbox
from consumer_groups.shard.records import validated_group_name
from envelope.errors import CorruptDataError, JetstreamError, LimitReached
from envelope.group_errors import UnknownGroup
from envelope.limits import GROUPS_MAX
from envelope.types import MonotonicNs, StreamName


def fetched(table: GroupTable, group: GroupName, partitions: Iterable[Partition]) -> CursorsFound:
    """Return the group's cursors in these partitions.

    Raises:
        CorruptDataError: one of them cannot be read.
    """
    found = (table.cursor(group, partition) for partition in partitions)
    return CursorsFound(tuple(cursor for cursor in found if cursor is not None))


def described(table: GroupTable, group: GroupName) -> GroupDescription:
    """Return all of one group.

    Raises:
        UnknownGroup: there is none of that name.
        CorruptDataError: its state, or one of its cursors, cannot be read.
    """
    if group not in table:
        raise UnknownGroup(f"there is no group {group!r}")
    state = table.state(group) or GroupState(group)
    return GroupDescription(state, fetched(table, group, table.partitions_of(group)).cursors)


def listed(table: GroupTable, prefix: str) -> GroupsFound:
    """Return the groups whose names begin like that; one that cannot be read counts as empty."""
    return GroupsFound(tuple(_summary(table, group) for group in sorted(table) if group.startswith(prefix)))


def _summary(table: GroupTable, group: GroupName) -> GroupOverview:
    try:
        state = table.state(group)
    except CorruptDataError:
        state = None
    state = state or GroupState(group)
    return GroupOverview(group, len(state.members), state.generation)


class Shard:
    """Decides for all groups of one shard; see the module.

    Attributes:
        table: the groups, as is durable; to be read.

    Invariants:
        H5: every group that has members is run.
    """

    def __init__(self, table: GroupTable, now: MonotonicNs) -> None:
        """Begin a reign with all that was committed before it; the table is the machine's from now on.

        Takes as long as the groups that have members are large; it may be called on a thread. The first event
        should be `StreamsChanged` for all that is `subscribed`.
        """
        self.table = table
        self._outbox = Outbox()
        self._runs: dict[GroupName, GroupRun] = {}
        self._coming: set[GroupName] = set()
        """Groups of which nothing is durable yet."""
        self._parked = ParkedHeartbeats()
        self._timers: Alarms[GroupName] = Alarms()
        self._timer_at = NEVER
        self._known: dict[StreamName, StreamPartitions] = {}
        self._users: dict[StreamName, dict[GroupName, None]] = {}
        """The groups that have to hear of a stream."""
        self._streams: dict[GroupName, frozenset[StreamName]] = {}
        """Of each group, as in ``_users``."""
        for group in table.with_members():
            self._look_after(self._begin(group, now))

    def __str__(self) -> str:
        """Return one line for logs."""
        return (
            f"groups={self.groups} members={self.members} cursors={self.cursors} parked={len(self._parked)}"
        )

    @property
    def groups(self) -> int:
        """Number of groups, also of those that are about to be."""
        return len(self.table) + len(self._coming)

    @property
    def members(self) -> int:
        """Number of members of all groups, as is durable."""
        return self.table.members

    @property
    def cursors(self) -> int:
        """Number of cursors of all groups, as is durable."""
        return self.table.cursors

    @property
    def subscribed(self) -> frozenset[StreamName]:
        """The streams of which `StreamsChanged` is to tell: they need not exist."""
        return frozenset(self._users)

    def handle(self, event: ShardEvent, now: MonotonicNs) -> tuple[ShardAction, ...]:
        """Take in one event; return what the shell must do, in that order."""
        match event:
            case Asked():
                self._ask(event, now)
            case Beats():
                self._beat(event, now)
            case Listed(question, prefix):
                self._outbox.reply(question, listed(self.table, prefix))
            case ConnectionClosed(connection):
                self._end_wait(connection)
            case ShardWritten(number, at):
                run = self._runs[self._outbox.settle(number)]
                run.written(at, now)
                self._settled(run, now)
            case WriteRefused(number, error):
                run = self._runs[self._outbox.settle(number)]
                run.refused(error, now)
                self._settled(run, now)
            case StreamsChanged():
                self._change_streams(event, now)
            case Tick():
                self._tick(now)
            case _:
                assert_never(event)
        due = min(self._timers.next(), self._parked.next_end())
        if due < self._timer_at:
            self._timer_at = due
            self._outbox.set_timer(due)
        return self._outbox.take()

    # --- what is asked ---------------------------------------------------------------------------------

    def _ask(self, event: Asked, now: MonotonicNs) -> None:
        try:
            group = validated_group_name(event.group)
            match event.request:
                case LookUpCursors(partitions):
                    self._outbox.reply(event.question, fetched(self.table, group, partitions))
                case DescribeGroup():
                    self._outbox.reply(event.question, described(self.table, group))
                case request:
                    run = self._run(group, request, now)
                    run.ask(event.question, request)
                    self._go_on(run, now)
        except JetstreamError as error:
            self._outbox.refuse(event.question, error)

    def _run(self, group: GroupName, request: QueuedRequest, now: MonotonicNs) -> GroupRun:
        """Return the group's run; it begins if there is none.

        Raises:
            CorruptDataError: the group cannot be read, and is not to be deleted by force.
            LimitReached: it would be one too many.
        """
        if not (isinstance(request, DeleteGroup) and request.force):
            self.table.state(group)
        run = self._runs.get(group)
        if run is not None:
            return run
        if group not in self.table and isinstance(request, Join | ResetCursors):
            self._make_room(now)
        return self._begin(group, now)

    def _make_room(self, now: MonotonicNs) -> None:
        """See to it that there can be one group more."""
        if self.groups < GROUPS_MAX:
            return
        empty = next((group for group in self.table.empty() if group not in self._runs), None)
        if empty is None:
            raise LimitReached(f"this shard has {GROUPS_MAX} groups")
        run = self._begin(empty, now)
        run.ask(None, DeleteGroup())
        self._go_on(run, now)

    def _begin(self, group: GroupName, now: MonotonicNs) -> GroupRun:
        if group not in self.table:
            self._coming.add(group)
        run = self._runs[group] = GroupRun(group, self.table, self._known, self._outbox, now)
        return run

    # --- heartbeats ------------------------------------------------------------------------------------

    def _beat(self, event: Beats, now: MonotonicNs) -> None:
        self._end_wait(event.connection)
        beats: dict[GroupName, tuple[Beat, ...]] = {}
        for group, beat in event.beats:
            beats[group] = (*beats.get(group, ()), beat)
        news: list[HeartbeatAnswer] = []
        for group, of_group in beats.items():
            run = self._runs.get(group)
            if run is None:
                news.append(_refused(self.table, group, of_group))
            else:
                news.append(run.beat(event.connection, of_group, now))
        answer = _joined(news)
        if answer != NO_NEWS or event.wait_ns <= 0:
            self._outbox.reply(event.question, answer)
        else:
            parked = Parked(event.question, beats)
            self._parked.park(event.connection, parked, MonotonicNs(now + event.wait_ns))

    def _end_wait(self, connection: ConnectionId) -> None:
        """Answer the heartbeat of a connection that waits, if one does."""
        parked = self._parked.take(connection)
        if parked is not None:
            self._outbox.reply(parked.question, NO_NEWS)

    def _notify_members(self, run: GroupRun) -> None:
        """Answer heartbeats that wait, as far as there is news of this group."""
        for connection, parked in self._parked.of_group(run.name):
            news = run.news(parked.beats[run.name])
            if news != NO_NEWS:
                self._parked.take(connection)
                self._outbox.reply(parked.question, news)

    # --- what happens ----------------------------------------------------------------------------------

    def _change_streams(self, event: StreamsChanged, now: MonotonicNs) -> None:
        concerned: dict[GroupName, None] = {}
        for name in event.deleted:
            self._known.pop(name, None)
            for group in self._users.get(name, ()):
                self._runs[group].stream_deleted(name)
                concerned[group] = None
        for stream in event.changed:
            if self._known.get(stream.stream) == stream:
                continue
            self._known[stream.stream] = stream
            for group in self._users.get(stream.stream, ()):
                self._runs[group].stream_changed()
                concerned[group] = None
        for group in concerned:
            self._go_on(self._runs[group], now)

    def _tick(self, now: MonotonicNs) -> None:
        self._timer_at = NEVER
        for group in self._timers.due(now):
            self._runs[group].tick()
            self._go_on(self._runs[group], now)
        for parked in self._parked.take_due(now):
            self._outbox.reply(parked.question, NO_NEWS)

    def _settled(self, run: GroupRun, now: MonotonicNs) -> None:
        self._notify_members(run)  # before it goes on: what it decides next is not to be said yet
        self._go_on(run, now)

    def _go_on(self, run: GroupRun, now: MonotonicNs) -> None:
        run.go_on(now)
        self._look_after(run)

    def _look_after(self, run: GroupRun) -> None:
        """Take note of what a run needs, and drop it if that is nothing."""
        group = run.name
        if group in self.table or run.is_idle:
            self._coming.discard(group)
        if run.is_idle:
            del self._runs[group]
            self._timers.clear(group)
            self._use(group, frozenset())
        else:
            self._timers.set(group, run.timer_at)
            self._use(group, run.streams)

    def _use(self, group: GroupName, streams: frozenset[StreamName]) -> None:
        before = self._streams.pop(group, frozenset())
        if streams:
            self._streams[group] = streams
        if streams is before:
            return
        for name in before - streams:
            del self._users[name][group]
            if not self._users[name]:
                del self._users[name]
        for name in sorted(streams - before):
            self._users.setdefault(name, {})[group] = None


def _refused(table: GroupTable, group: GroupName, beats: Iterable[Beat]) -> HeartbeatAnswer:
    """Return why beats of a group that is not run are in vain."""
    try:
        state = table.state(group) or GroupState(group)
    except CorruptDataError as error:
        refusal = CoordinatorRefusal.of(error)
        return HeartbeatAnswer((), tuple((group, beat.member_id, refusal) for beat in beats))
    assert not state.members, f"H5: {state.name} has members and is not run"
    found = [(beat.member_id, member_refusal(state, beat.member_id, beat.instance_id)) for beat in beats]
    return HeartbeatAnswer((), tuple((group, who, why) for who, why in found if why is not None))


def _joined(news: list[HeartbeatAnswer]) -> HeartbeatAnswer:
    if len(news) == 1:
        return news[0]
    assignments = chain.from_iterable(each.assignments for each in news)
    return HeartbeatAnswer(tuple(assignments), tuple(chain.from_iterable(each.refused for each in news)))
