"""The requests of one group: its coordinator's decisions, and the writes of them that are under way.

A change of the group's state is one write, and nothing else of the group goes on before that is settled.
While nothing changes, commits are written one behind the other. All writes go to one log, in order: the
commits allowed to a former owner are settled before its successor is notified that it owns the partition.
"""

from collections import deque
from dataclasses import dataclass
from typing import assert_never

from consumer_groups.assignment.partitions import GroupName
from consumer_groups.coordinator.coordinator import Coordinator
from consumer_groups.coordinator.events import (
    CommitRefused,
    Event,
    Expire,
    ExpiryCause,
    Join,
    Leave,
    Loaded,
    NewCursor,
    Persist,
    PutOut,
    Release,
    SetTimer,
    StoreCursors,
)
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.shard.commits import PendingCommit, PendingCommits
from consumer_groups.shard.events import (
    Answer,
    CursorsCommitted,
    DeleteGroup,
    Done,
    QuestionId,
    ResetCursors,
)
from consumer_groups.shard.group_table import Changed, Deleted, GroupChange, GroupTable
from consumer_groups.shard.outbox import Outbox, answer_of
from consumer_groups.shard.records import GroupRecord
from envelope.errors import CorruptDataError, JetstreamError, RequestError
from envelope.group_errors import GroupInUse, UnknownGroup
from envelope.types import MonotonicNs, StreamName, TimestampUs

QueuedRequest = Join | Release | Leave | StoreCursors | ResetCursors | DeleteGroup


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A write that is not settled."""

    change: GroupChange
    question: QuestionId | None
    answer: Answer
    """Once it is committed."""
    is_alone: bool = True
    """Nothing else of the group goes on before it is settled."""
    commit: PendingCommit | None = None
    expired: tuple[Expire, ...] = ()
    deleted: frozenset[StreamName] = frozenset()
    """Streams whose end it takes in."""

    @property
    def has_state(self) -> bool:
        """Return whether the coordinator has decided it."""
        return isinstance(self.change, Changed) and self.change.state is not None


class GroupWriter:
    """Serves what is asked of one group.

    Invariants:
        H2: behind a write that goes alone (a change of the group's state, a cursor that goes back) no other
            one of the group is begun before it is settled.
    """

    coordinator: Coordinator
    timer_at: MonotonicNs
    """When the coordinator is to be ticked."""
    streams: frozenset[StreamName]
    """Streams that members subscribe to, or own a partition of."""

    def __init__(self, name: GroupName, table: GroupTable, outbox: Outbox, now: MonotonicNs) -> None:
        """Begin with what is durable."""
        self.name = name
        self._table, self._outbox = table, outbox
        self._commits = PendingCommits(name, table)
        self._under_way: deque[UnderWay] = deque()
        self._begin(now)

    def _begin(self, now: MonotonicNs) -> None:
        try:
            state = self._table.state(self.name)
        except CorruptDataError:
            state = None  # all that can be asked of it then is to be deleted
        self.coordinator, self.timer_at = Coordinator(self.name), NEVER
        self.give(Loaded(state), now)
        self.streams = _streams(self.coordinator.state)

    @property
    def under_way(self) -> int:
        """Number of writes that are not settled."""
        return len(self._under_way)

    @property
    def is_held(self) -> bool:
        """Return whether nothing can go on."""
        return bool(self._under_way) and self._under_way[-1].is_alone

    @property
    def is_durable(self) -> bool:
        """Return whether the coordinator knows nothing that is not durable."""
        return not (self._under_way and self._under_way[-1].has_state)

    # --- serving ---------------------------------------------------------------------------------------

    def can_serve(self, request: QueuedRequest) -> bool:
        """Return whether nothing is under way that has to be settled first."""
        if self.is_held:
            return False
        match request:
            case Join() | Release() | Leave():
                return True
            case StoreCursors():
                return not self._under_way or self._can_commit(request)
            case ResetCursors() | DeleteGroup():
                return not self._under_way
            case _:
                assert_never(request)

    def _can_commit(self, request: StoreCursors) -> bool:
        """Return whether a commit can be measured: not if it names another incarnation."""
        if request.is_reset or not self._commits.goes_back(request.cursors):
            return True
        return self._commits.refusal(request.cursors) is not None

    def serve(self, question: QuestionId | None, request: QueuedRequest, now: MonotonicNs) -> None:
        """Do what is asked, as far as that is allowed."""
        assert self.is_durable, f"H3: {request} would be answered with what is not durable"
        match request:
            case Join() | Release() | Leave():
                self.give(request, now, question)
            case StoreCursors():
                self._commit(question, request, now)
            case ResetCursors():
                self._reset(question, request, now)
            case DeleteGroup():
                self._delete(question, request)
            case _:
                assert_never(request)

    def give(
        self,
        event: Event,
        now: MonotonicNs,
        question: QuestionId | None = None,
        *,
        cursors: tuple[NewCursor, ...] = (),
        deleted: frozenset[StreamName] = frozenset(),
    ) -> None:
        """Give the coordinator an event; ``cursors`` are to change in the write that follows from it."""
        for action in self.coordinator.handle(event, now):
            match action:
                case SetTimer(at):
                    self.timer_at = at
                case Persist(state, then):
                    self.streams = _streams(state)
                    change = Changed(self.name, state.generation, state, cursors)
                    expired = tuple(said for said in then if isinstance(said, Expire))
                    answers = [answer_of(said) for said in then if not isinstance(said, Expire)]
                    answer = answers[0] if answers else Done()  # the rest is news, for who asks for them
                    under_way = UnderWay(change, question, answer, expired=expired, deleted=deleted)
                    self._write(under_way, change.records())
                case _:
                    self._outbox.reply(question, answer_of(action))

    def _commit(self, question: QuestionId | None, request: StoreCursors, now: MonotonicNs) -> None:
        (said,) = self.coordinator.handle(request, now)
        later = self._commits.later_one(request)
        if isinstance(said, CommitRefused):
            self._outbox.refuse(question, said.refusal.as_error())
        elif later is not None:
            later.superseded.append(question)
        elif self._commits.is_over(request):
            self._outbox.reply(question, CursorsCommitted(superseded=True))
        else:
            self._take(question, request)

    def _take(self, question: QuestionId | None, request: StoreCursors) -> None:
        goes_back = self._commits.goes_back(request.cursors)
        change = Changed(self.name, request.generation, cursors=request.cursors)
        records = self._records_of(change)
        if goes_back and not (request.is_reset or isinstance(records, JetstreamError)):
            records = self._commits.refusal(request.cursors) or records
        if isinstance(records, JetstreamError):
            self._outbox.refuse(question, records)
            return
        commit = PendingCommit(request.member_id, request.request, request.cursors)
        self._commits.begin(commit)
        self._write(
            UnderWay(change, question, CursorsCommitted(), is_alone=goes_back, commit=commit), records
        )

    def _reset(self, question: QuestionId | None, request: ResetCursors, now: MonotonicNs) -> None:
        state = self.coordinator.state
        change = Changed(self.name, state.generation, cursors=request.cursors)
        records = self._in_use(request) or self._records_of(change)
        if isinstance(records, JetstreamError):
            self._outbox.refuse(question, records)
        elif state.members:
            self.give(PutOut(), now, question, cursors=request.cursors)
        else:
            self._write(UnderWay(change, question, Done()), records)

    def _delete(self, question: QuestionId | None, request: DeleteGroup) -> None:
        problem = self._in_use(request)
        if self.name not in self._table:
            problem = UnknownGroup(f"there is no group {self.name!r}")
        if problem is not None:
            self._outbox.refuse(question, problem)
            return
        members = self.coordinator.state.members
        expired = tuple(Expire(member_id, ExpiryCause.FORCED) for member_id in members)
        change = Deleted(self.name, tuple(self._table.partitions_of(self.name)))
        self._write(UnderWay(change, question, Done(), expired=expired), change.records())

    def _records_of(self, change: Changed) -> tuple[GroupRecord, ...] | JetstreamError:
        """Return what is to be written for new cursors, or what is wrong with them."""
        try:
            return self._commits.limit_refusal(change.cursors) or change.records()
        except RequestError as error:
            return error

    def _in_use(self, request: ResetCursors | DeleteGroup) -> JetstreamError | None:
        members = len(self.coordinator.state.members)
        if members == 0 or request.force:
            return None
        return GroupInUse(f"group {self.name!r} has members: {members}", members=members)

    def _write(self, under_way: UnderWay, records: tuple[GroupRecord, ...]) -> None:
        assert not self.is_held, f"H2: {under_way} behind {self._under_way[-1]}"
        self._outbox.write(self.name, records)
        self._under_way.append(under_way)

    # --- settling --------------------------------------------------------------------------------------

    def written(self, at: TimestampUs, now: MonotonicNs) -> None:
        """Take in that the write that is under way for longest is committed."""
        done = self._under_way.popleft()
        assert not (done.is_alone and self._under_way), f"H2: {self._under_way} behind {done}"
        done.change.apply(self._table, at)
        for expired in done.expired:
            self._outbox.expire(self.name, expired)
        self._outbox.reply(done.question, done.answer)
        if done.commit is not None:
            self._commits.end(done.commit, is_durable=True)
            for question in done.commit.superseded:
                self._outbox.reply(question, CursorsCommitted(superseded=True))
        else:
            self._commits.keep(self.coordinator.state.members.keys())
        if isinstance(done.change, Deleted):
            self._begin(now)

    def refused(self, error: JetstreamError, now: MonotonicNs) -> UnderWay:
        """Take in that nothing is stored of the write that is under way for longest; return that."""
        done = self._under_way.popleft()
        self._outbox.refuse(done.question, error)
        if done.commit is not None:
            self._commits.end(done.commit, is_durable=False)
            for question in done.commit.superseded:
                self._outbox.refuse(question, error)
        if done.has_state:
            self._begin(now)
        return done


def _streams(state: GroupState) -> frozenset[StreamName]:
    return state.subscribed() | state.streams.keys()
