"""The coordinator of one group: who is a member, who owns what, and who may commit.

Theory of operation. The group is a value (`GroupState`) with a generation. Each change of it makes the next
generation, which is durable before anybody hears of it; so another coordinator goes on from what was said.
The owners of partitions change as `succession` says: a partition is granted when nobody has it, and its
owner is asked for it otherwise. A partition has its owner since some generation, and a commit must come from
the owner, with that generation or a later one. So of two who both believe that they own a partition only one
can commit, whatever was lost, doubled or late, and whoever stood still meanwhile.

A member is put out when nothing is heard of it for its session timeout, or when it keeps what it was asked
for longer than its rebalance timeout. All members of one connection are heard at once. Answers may be lost:
a heartbeat says which generation the member has heard, and is answered with what it has missed.

Events come one after the other: while something is made durable none is given, but for heartbeats, so that
who beats meanwhile was heard. The shell may be late: a tick that comes late by more than `STOOD_STILL_NS`
puts nobody out, as heartbeats may wait behind it.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, assert_never

from consumer_groups.assignment.partitions import GroupName, MemberId, Partition, StreamPartitions
from consumer_groups.coordinator.events import (
    Action,
    Answer,
    Assigned,
    Assignment,
    Beat,
    CommitAllowed,
    CommitRefused,
    CoordinatorRefusal,
    Event,
    Expire,
    ExpiryCause,
    HeartbeatAnswered,
    Join,
    Joined,
    JoinRefused,
    Leave,
    Left,
    Loaded,
    MemberHeartbeat,
    MemberRefused,
    PartitionsChanged,
    Persist,
    PutOut,
    Release,
    SetTimer,
    StoreCursors,
    Tick,
)
from consumer_groups.coordinator.fencing import commit_refusal, generation_refusal, member_refusal
from consumer_groups.coordinator.group_state import Grant, GroupState
from consumer_groups.coordinator.membership import JoinAdmission, Repeat, admission
from consumer_groups.coordinator.sessions import NEVER, MemberSessions
from consumer_groups.coordinator.succession import Wishes, retargeted, succeeded, without
from envelope.types import MonotonicNs, StreamName

STOOD_STILL_NS: Final = 500_000_000
"""A tick that is later than that says something about this node, not about members."""


class Coordinator:
    """Decides for one group; see the module.

    Invariants:
        G3: nobody hears of a generation that is not durable: whatever changes the group is answered behind a
            `Persist` of it.
    """

    def __init__(self, name: GroupName) -> None:
        """Begin; the first event is `Loaded`."""
        self.state = GroupState(name)
        self._loaded = False
        self._known: dict[StreamName, StreamPartitions] = {}
        self._sessions = MemberSessions()
        self._timer_at = NEVER

    def __str__(self) -> str:
        """Return one line for logs."""
        state = self.state
        asked = sum(len(share.gives_up) for share in state.shares().values())
        members = ",".join(sorted(state.members))
        return f"{state.name} g{state.generation} members={members} owned={len(state.grants)} asked={asked}"

    def handle(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        """Take in one event; return what the shell must do, in that order."""
        assert self._loaded != isinstance(event, Loaded), f"{event} to {self}"
        before = self.state.generation
        actions = (*self._dispatch(event, now), *self._timer(event))
        said = [action for action in actions if not isinstance(action, SetTimer)]
        assert self.state.generation >= before, f"G2: {self.state.generation} after {before}"
        if self.state.generation != before and not isinstance(event, Loaded):
            assert [Persist] == [type(action) for action in said], f"G3: {said}"
        return actions

    def news(self, beat: Beat) -> Assignment | CoordinatorRefusal | None:
        """Return what a member that has heard so much has not heard; None if there is nothing."""
        refusal = member_refusal(self.state, beat.member_id, beat.instance_id)
        refusal = refusal or generation_refusal(self.state, beat.generation)
        if refusal is not None:
            return refusal
        if beat.generation < self.state.members[beat.member_id].assigned:
            return self._sessions.assignment(self.state, beat.member_id)
        return None

    def _dispatch(self, event: Event, now: MonotonicNs) -> tuple[Action, ...]:
        actions: tuple[Action, ...] = ()
        match event:
            case Loaded(state):
                self._load(state, now)
            case Join():
                actions = (self._join(event, now),)
            case MemberHeartbeat():
                actions = (self._beat(event, now),)
            case Release():
                actions = (self._release(event, now),)
            case Leave():
                actions = (self._leave(event, now),)
            case StoreCursors():
                actions = (self._commit(event),)
            case PartitionsChanged():
                actions = self._repartition(event, now)
            case PutOut():
                actions = (self._put_out(now),)
            case Tick():
                actions = self._expire(now)
            case _:
                assert_never(event)
        return actions

    # --- events -------------------------------------------------------------------------------------------

    def _load(self, state: GroupState | None, now: MonotonicNs) -> None:
        self._loaded = True
        if state is not None:
            assert state.name == self.state.name, f"{state.name} is not {self.state.name}"
            self.state = state
        self._known = {name: StreamPartitions(name, count) for name, count in self.state.streams.items()}
        self._sessions.follow(self.state, now)

    def _join(self, join: Join, now: MonotonicNs) -> Action:
        found = admission(self.state, join)
        match found:
            case CoordinatorRefusal():
                return JoinRefused(join.connection, join.client, join.request, found)
            case Repeat(member_id, is_newest):
                if is_newest:
                    self._sessions.record_alive(member_id, join.connection, now)
                return self._joined(join, member_id)
            case JoinAdmission(draft, member_id, needs_target, wishes):
                self._advance(draft, now, wishes={member_id: wishes} if needs_target else None)
                self._sessions.record_alive(member_id, join.connection, now)
                return self._persist([self._joined(join, member_id)], answered=member_id)
            case _:
                assert_never(found)

    def _beat(self, heartbeat: MemberHeartbeat, now: MonotonicNs) -> HeartbeatAnswered:
        assignments, refused = [], []
        for beat in heartbeat.beats:
            news = self.news(beat)
            if isinstance(news, CoordinatorRefusal):
                refused.append((beat.member_id, news))
                continue
            self._sessions.record_alive(beat.member_id, heartbeat.connection, now)
            if news is not None:
                assignments.append(news)
        return HeartbeatAnswered(heartbeat.connection, tuple(assignments), tuple(refused))

    def _release(self, release: Release, now: MonotonicNs) -> Action:
        state, member_id = self.state, release.member_id
        refusal = member_refusal(state, member_id, release.instance_id)
        if refusal is not None:
            return MemberRefused(release.connection, member_id, refusal)
        # A claim says since when: a late release does not give up what was granted again since.
        let_go = {
            partition
            for partition, generation in release.claims
            if state.grants.get(partition) == Grant(member_id, generation)
        }
        if not let_go:
            return Assigned(release.connection, self._sessions.assignment(state, member_id))
        grants = {partition: grant for partition, grant in state.grants.items() if partition not in let_go}
        self._advance(replace(state, grants=grants), now, let_go=let_go)
        answer = Assigned(release.connection, self._sessions.assignment(self.state, member_id))
        return self._persist([answer], answered=member_id)

    def _leave(self, leave: Leave, now: MonotonicNs) -> Action:
        left = Left(leave.connection, leave.member_id)
        if leave.member_id not in self.state.members:
            return left
        self._advance(without(self.state, [leave.member_id]), now, wishes={})
        return self._persist([left])

    def _commit(self, commit: StoreCursors) -> Answer:
        where = (commit.connection, commit.member_id, commit.request)
        refusal = commit_refusal(self.state, commit)
        if refusal is not None:
            return CommitRefused(*where, refusal)
        return CommitAllowed(*where)

    def _repartition(self, change: PartitionsChanged, now: MonotonicNs) -> tuple[Action, ...]:
        self._known |= {stream.stream: stream for stream in change.changed}
        for name in change.deleted:
            self._known.pop(name, None)
        used = self.state.subscribed() | self.state.streams.keys()
        counts = {name: stream.count for name, stream in self._known.items() if name in used}
        if counts == self.state.streams:
            return ()
        self._advance(self.state, now, wishes={})
        return (self._persist([]),)

    def _expire(self, now: MonotonicNs) -> tuple[Action, ...]:
        late_ns = now - self._timer_at
        if late_ns > STOOD_STILL_NS:
            self._sessions.forgive(late_ns + STOOD_STILL_NS)
        overdue = list(self._sessions.overdue(self.state.members, now))
        if not overdue:
            return ()
        self._advance(without(self.state, [member_id for member_id, _ in overdue]), now, wishes={})
        return (self._persist([Expire(member_id, cause) for member_id, cause in overdue]),)

    def _put_out(self, now: MonotonicNs) -> Persist:
        members = tuple(self.state.members)
        assert members, f"{self.state.name} has members to be put out"
        self._advance(without(self.state, members), now, wishes={})
        return self._persist([Expire(member_id, ExpiryCause.FORCED) for member_id in members])

    # --- what follows -------------------------------------------------------------------------------------

    def _advance(
        self,
        draft: GroupState,
        now: MonotonicNs,
        *,
        let_go: AbstractSet[Partition] = frozenset(),
        wishes: Wishes | None = None,
    ) -> None:
        """Enter the next generation; with ``wishes``, even if there are none, it has a new target."""
        if wishes is not None:
            draft = retargeted(draft, self._known, wishes)
        self.state = succeeded(self.state, draft, let_go)
        self._sessions.follow(self.state, now)

    def _persist(self, answers: Iterable[Answer], answered: MemberId | None = None) -> Persist:
        """Return the present generation, to be durable before the answers and what others are told."""
        told = (
            each
            for each in self._sessions.changed_assignments(self.state)
            if each.assignment.member_id != answered
        )
        return Persist(self.state, (*answers, *told))

    def _joined(self, join: Join, member_id: MemberId) -> Joined:
        return Joined(
            join.connection, join.client, join.request, self._sessions.assignment(self.state, member_id)
        )

    def _timer(self, event: Event) -> Iterator[SetTimer]:
        """Yield when to wake up; a heartbeat only makes it later, which shows when the time has come."""
        if isinstance(event, MemberHeartbeat | StoreCursors):
            return
        next_due = self._sessions.next_due(self.state.members)
        if next_due != NEVER and (next_due != self._timer_at or isinstance(event, Tick)):
            yield SetTimer(next_due)
        self._timer_at = next_due
