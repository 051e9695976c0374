"""A member of a group: how it comes in, what it reads, what it gives up, how it comes back.

Theory of operation. The member asks its coordinator for membership, and hears in assignments what it owns.
It reads what is new to it, and goes on with what it keeps, whatever happens to the rest. Of a partition that
it is to give up it stops reading and commits first; then it says so, again and again until no assignment
names it any more. If it is to keep such a thing after all, it has stopped by then, and says that all the
same: it is granted anew. When it hears that it was put out it drops everything, commits nothing, and joins
anew under its old name, saying what it had.

Requests and answers may be lost, doubled, late or out of order, and the coordinator may be another one from
one moment to the next: every request is sent again, unchanged, until it is answered, and what is told of an
older generation, or to an earlier membership, is left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, assert_never

from consumer_groups.assignment.assignors import Assignor
from consumer_groups.assignment.partitions import Claim, InstanceId, MemberId
from consumer_groups.coordinator.events import (
    Assigned,
    Assignment,
    Beat,
    ConnectionId,
    CoordinatorRefusal,
    Join,
    Joined,
    JoinRefused,
    Leave,
    Left,
    MemberRefused,
    NewCursor,
    Release,
    StoreCursors,
    Tick,
)
from consumer_groups.coordinator.group_state import NO_GENERATION, ClientId
from consumer_groups.member.claims import MemberClaims, Stage
from consumer_groups.member.commits import CursorCommit
from consumer_groups.member.events import (
    Closed,
    CoordinatorFound,
    CoordinatorLost,
    CoordinatorRefused,
    Ended,
    Lost,
    MemberAction,
    MemberEvent,
    MemberRequest,
    Resumed,
    Stalled,
    StartReading,
    StoppedReading,
    StopReading,
    Subscribed,
)
from consumer_groups.member.pending_requests import PendingRequests
from envelope.errors import Fenced, InvalidTicket, NotLeader
from envelope.group_errors import InstanceFenced
from envelope.types import MonotonicNs, NodeId, StreamName

CLAIMS_NAMED_MAX: Final = 1_000
"""In one request: what is beyond that is given up by the next one, or not wished for."""

_NOBODY: Final = MemberId("")


class Aim(Enum):
    """The application's wish for the membership."""

    CONSUME = auto()
    STAND_BY = auto()
    """To be no member for the time being."""
    LEAVE = auto()


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a client joins."""

    client: ClientId
    """A name that it gave itself at its start, and that nobody else ever has."""
    session_timeout_ns: int
    rebalance_timeout_ns: int
    instance_id: InstanceId | None = None
    assignor: Assignor = Assignor.STICKY
    node: NodeId | None = None
    rack: str | None = None

    def join(self, connection: ConnectionId, request: int, streams: frozenset[StreamName]) -> Join:
        """Return the first join of a membership."""
        return Join(
            connection=connection,
            client=self.client,
            request=request,
            fresh_id=_NOBODY,
            streams=streams,
            session_timeout_ns=self.session_timeout_ns,
            rebalance_timeout_ns=self.rebalance_timeout_ns,
            instance_id=self.instance_id,
            assignor=self.assignor,
            node=self.node,
            rack=self.rack,
        )


class Member:
    """Decides for one member; see the module.

    Invariants:
        M2: a `Release` names nothing that is read, or not committed yet.
        M3: the generation that was heard never goes back in one membership.
    """

    def __init__(self, terms: Terms) -> None:
        """Begin; the first event is `Subscribed`."""
        self.member_id: MemberId | None = None
        self.heard = NO_GENERATION
        """Of the newest assignment that it was told."""
        self.is_over = False
        self._terms = terms
        self._streams: frozenset[StreamName] = frozenset()
        self._aim = Aim.CONSUME
        self._pending = PendingRequests()
        self._claims = MemberClaims()
        self._former: tuple[Claim, ...] = ()
        """What it had when it was put out last, if it had anything."""
        self._joins = self._commits = 0
        self._join_waits = self._join_was_sent = self._leave_waits = False

    def __str__(self) -> str:
        """Return one line for logs."""
        return f"member={self.member_id} g{self.heard} aim={self._aim.name.lower()} {self._claims}"

    @property
    def beat(self) -> Beat | None:
        """Its part in the next heartbeat of its connection; None: nothing."""
        if self.member_id is None or self._leave_waits or self.is_over:
            return None
        return Beat(self.member_id, self.heard, self._terms.instance_id)

    @property
    def rests(self) -> bool:
        """Whether it is a member, and nothing that it asked for, or was asked for, is open."""
        return self.member_id is not None and not self._waits and not self._claims.at(Stage.STOPPING)

    @property
    def _stays(self) -> bool:
        """Whether the membership is wanted; one that was left is not, even if it is not over yet."""
        return self._aim is Aim.CONSUME and not self._leave_waits

    @property
    def _waits(self) -> bool:
        return self._join_waits or self._leave_waits or bool(self._claims.at(Stage.STOPPED))

    def handle(self, event: MemberEvent, now: MonotonicNs) -> tuple[MemberAction, ...]:
        """Take in one event; return what the shell must do, in that order."""
        if self.is_over:
            return ()
        heard, member_id = self.heard, self.member_id
        actions = [*self._dispatch(event)]
        assert self.member_id != member_id or self.heard >= heard, f"M3: {self.heard} after {heard}"
        assert self.member_id is not None or not self._claims.held, f"M2: no member, and reads: {self}"
        return (*actions, *self._pending.timer(now, waits=self._waits and not self.is_over))

    def commit(self, commit: CursorCommit) -> StoreCursors | None:
        """Return the next request, for this commit; None if there is no membership to commit for.

        It is to be sent unchanged until it is answered, and the next one not before that.
        """
        connection = self._pending.connection
        if self.member_id is None or connection is None:
            return None
        self._commits += 1
        return StoreCursors(
            connection=connection,
            member_id=self.member_id,
            request=self._commits,
            generation=self.heard,
            cursors=tuple(NewCursor(claim.partition, place) for claim, place in commit.places),
            instance_id=self._terms.instance_id,
            is_reset=commit.goes_back,
        )

    def _dispatch(self, event: MemberEvent) -> Iterator[MemberAction]:
        match event:
            case Subscribed() | Closed() | Stalled() | Resumed():
                yield from self._take_aim(event)
            case CoordinatorFound(connection):
                self._pending.found(connection)
                yield from self._requests()
            case CoordinatorLost(connection):
                yield from self._pending.lost(connection)
            case CoordinatorRefused(refusal):
                yield from self._end(refusal)
            case Joined() | JoinRefused() | Assigned() | MemberRefused() | Left():
                yield from self._handle_answer(event)
            case StoppedReading(claims):
                yield from self._stopped_reading(claims)
            case Tick():
                self._pending.ticked()
                yield from self._requests()
            case _:
                assert_never(event)

    # --- coming in and going ------------------------------------------------------------------------------

    def _take_aim(self, event: Subscribed | Closed | Stalled | Resumed) -> Iterator[MemberAction]:
        match event:
            case Subscribed(streams):
                self._streams = streams
                yield from self._come_in()
            case Closed():
                self._aim = Aim.LEAVE
                reading = self._claims.at(Stage.READING)
                self._claims.stop(reading)
                yield from (StopReading(each) for each in (reading,) if each)
                yield from self._leave()
            case Stalled() if self._aim is Aim.CONSUME:
                self._aim = Aim.STAND_BY
                yield from _lost(self._claims.lose_all())
                yield from self._leave()
            case Resumed() if self._aim is Aim.STAND_BY:
                self._aim = Aim.CONSUME
                yield from self._come_in()
            case Stalled() | Resumed():
                pass  # nothing new
            case _:
                assert_never(event)

    def _come_in(self) -> Iterator[MemberAction]:
        """Join, or tell the coordinator that the subscription is another one."""
        if not self._stays:
            return
        self._joins += 1
        self._join_waits, self._join_was_sent = True, False
        self._pending.begin()
        yield from self._pending.locate()
        yield from self._requests()

    def _leave(self) -> Iterator[MemberAction]:
        """Leave, as soon as everything has stopped and there is something to leave."""
        if self._claims.at(Stage.STOPPING):
            return
        if self.member_id is not None:
            self._join_waits, self._leave_waits = False, True
            self._pending.begin()
            yield from self._requests()
        elif not (self._join_waits and self._join_was_sent):
            self._join_waits = False
            if self._aim is Aim.LEAVE:
                yield from self._end(None)

    def _put_out(self) -> Iterator[MemberAction]:
        """It is no member any more: come in again, or be content if that was wanted."""
        had = self._claims.lose_all()
        yield from _lost(had)
        self._former = had or self._former
        self.member_id, self.heard = None, NO_GENERATION
        self._join_waits = self._leave_waits = False
        if self._aim is Aim.LEAVE:
            yield from self._end(None)
        else:
            yield from self._come_in()

    def _end(self, refusal: CoordinatorRefusal | None) -> Iterator[MemberAction]:
        yield from _lost(self._claims.lose_all())
        self.is_over = True
        yield Ended(refusal)

    # --- answers ------------------------------------------------------------------------------------------

    def _handle_answer(
        self, answer: Joined | JoinRefused | Assigned | MemberRefused | Left
    ) -> Iterator[MemberAction]:
        match answer:
            case Joined() | JoinRefused():
                yield from self._handle_join_answer(answer)
            case Assigned(_, assignment):
                yield from self._assigned(assignment)
            case MemberRefused(connection, member_id, refusal) if member_id == self.member_id:
                yield from self._refused(connection, refusal)
            case Left(_, member_id) if member_id == self.member_id:
                yield from self._put_out()
            case MemberRefused() | Left():
                pass  # to a former membership
            case _:
                assert_never(answer)

    def _handle_join_answer(self, answer: Joined | JoinRefused) -> Iterator[MemberAction]:
        if not self._join_waits or (answer.client, answer.request) != (self._terms.client, self._joins):
            return
        if isinstance(answer, JoinRefused):
            yield from self._refused(answer.connection, answer.refusal)
            return
        self._join_waits = False
        if answer.assignment.member_id != self.member_id:
            yield from _lost(self._claims.lose_all())
            self.member_id, self.heard = answer.assignment.member_id, NO_GENERATION
        yield from self._assigned(answer.assignment)
        if not self._stays:
            yield from self._leave()

    def _refused(self, connection: ConnectionId, refusal: CoordinatorRefusal) -> Iterator[MemberAction]:
        """Hear why a join, a release or a heartbeat was in vain."""
        error = refusal.error
        if issubclass(error, NotLeader | InvalidTicket):
            yield from self._pending.lost(connection)
        elif issubclass(error, Fenced) and not issubclass(error, InstanceFenced):
            yield from self._put_out()
        elif not error.retriable:
            yield from self._end(refusal)

    def _assigned(self, assignment: Assignment) -> Iterator[MemberAction]:
        """Hear what it owns."""
        if assignment.member_id != self.member_id or assignment.generation < self.heard:
            return
        self.heard = assignment.generation
        if not self._stays:
            yield from _lost(self._claims.lose_all_but({*assignment.keeps, *assignment.gives_up}))
            return
        change = self._claims.follow(assignment)
        yield from _lost(change.lost)
        if change.fresh:
            yield StartReading(change.fresh)
        if change.asked:
            yield StopReading(change.asked)
        if change.never_read:
            yield from self._requests()

    def _stopped_reading(self, claims: tuple[Claim, ...]) -> Iterator[MemberAction]:
        if not self._claims.stopped(claims):
            return  # lost meanwhile
        self._pending.begin()
        yield from self._requests() if self._stays else self._leave()

    # --- asking -------------------------------------------------------------------------------------------

    def _requests(self) -> Iterator[MemberRequest]:
        """Yield what is to be sent until it is answered."""
        connection, terms = self._pending.connection, self._terms
        if connection is None:
            return
        if self._leave_waits:
            assert self.member_id is not None, "only members leave"
            yield Leave(connection, self.member_id, terms.instance_id)
            return
        if self._join_waits:
            self._join_was_sent = True
            owned = self._former[:CLAIMS_NAMED_MAX] if self.member_id is None else ()
            first = terms.join(connection, self._joins, self._streams)
            yield replace(first, member_id=self.member_id, owned=owned)
        stopped = self._claims.at(Stage.STOPPED)[:CLAIMS_NAMED_MAX]
        if self.member_id is not None and stopped:
            assert not {*stopped} & {*self._claims.held}, f"M2: {stopped}"
            yield Release(connection, self.member_id, tuple(sorted(stopped)), terms.instance_id)


def _lost(claims: tuple[Claim, ...]) -> Iterator[Lost]:
    if claims:
        yield Lost(claims)
