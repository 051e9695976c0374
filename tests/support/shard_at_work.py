"""A shard with everything around it at hand: who asks, time that is moved, a log that commits or refuses."""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TypeVar

from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    GroupName,
    MemberId,
    Partition,
    StreamPartitions,
)
from consumer_groups.coordinator.events import (
    Assignment,
    Beat,
    ConnectionId,
    Join,
    Leave,
    NewCursor,
    Release,
    SetTimer,
    StoreCursors,
    Tick,
)
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import (
    Answer,
    Asked,
    Beats,
    Expired,
    GroupRequest,
    HeartbeatAnswer,
    LookUpCursors,
    QuestionId,
    Reply,
    RequestFailed,
    ShardEvent,
    ShardWritten,
    StreamsChanged,
    Write,
    WriteRefused,
)
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.records import GroupCursorRecord, GroupRecord, read_group_record
from consumer_groups.shard.shard import Shard
from envelope.errors import JetstreamError, NotEnoughReplicas
from envelope.types import MonotonicNs, Offset, StreamName, TimestampUs
from tests.support.group_coordination import SECOND, join

READERS = GroupName("readers")
AnswerT = TypeVar("AnswerT")


def orders(number: int = 0) -> Partition:
    return Partition(StreamName("orders"), number)


def cursors(*offsets: int, incarnation: str | None = None) -> tuple[NewCursor, ...]:
    """Return cursors for the partitions 0, 1, … of ``orders``."""
    return tuple(
        NewCursor(orders(number), CursorPosition(offset, incarnation))
        for number, offset in enumerate(offsets)
    )


def table_of(log: Sequence[GroupRecord]) -> GroupTable:
    """Return what a log says; a record's timestamp is its offset."""
    table = GroupTable()
    read = (read_group_record(key, value, Offset(at), TimestampUs(at)) for at, (key, value) in enumerate(log))
    table.replay([record for record in read if record is not None], Offset(len(log)))
    return table


class ShardAtWork:
    """One reign after the other; `log` outlives them."""

    def __init__(self, log: Sequence[GroupRecord] = (), partitions: int = 4) -> None:
        self.log = list(log)
        self.now = MonotonicNs(5 * SECOND)
        self.streams = {"orders": partitions}
        self._questions = count(1)
        self.take_over()

    def take_over(self) -> None:
        """Let another reign begin, with what is committed."""
        self.table = table_of(self.log)
        self.shard = Shard(self.table, self.now)
        self.writes: deque[Write] = deque()
        self.answers: dict[QuestionId, Answer] = {}
        self.expired: list[Expired] = []
        self.timer = NEVER
        self.partition()

    # --- events ---------------------------------------------------------------------------------------------

    def give(self, event: ShardEvent) -> None:
        for action in self.shard.handle(event, self.now):
            match action:
                case Write():
                    self.writes.append(action)
                case Reply(question, answer):
                    assert question not in self.answers, f"{question} is answered twice"
                    self.answers[question] = answer
                case SetTimer(at):
                    self.timer = at
                case Expired():
                    self.expired.append(action)

    def new_question(self) -> QuestionId:
        return QuestionId(next(self._questions))

    def ask(self, request: GroupRequest, group: str = READERS) -> QuestionId:
        question = self.new_question()
        self.give(Asked(question, GroupName(group), request))
        return question

    def commit(self, writes: int | None = None) -> None:
        """Let so many writes be committed; None: until there is none."""
        while self.writes and writes != 0:
            write = self.writes.popleft()
            at = TimestampUs(len(self.log))
            self.log += write.records
            self.give(ShardWritten(write.number, at))
            writes = None if writes is None else writes - 1

    def refuse(self, error: JetstreamError | None = None) -> None:
        """Let the first write be refused."""
        self.give(WriteRefused(self.writes.popleft().number, error or NotEnoughReplicas("one is lacking")))

    def partition(self, *deleted: str, **counts: int) -> None:
        self.streams = {name: each for name, each in self.streams.items() if name not in deleted} | counts
        known = tuple(StreamPartitions(StreamName(name), each) for name, each in self.streams.items())
        self.give(StreamsChanged(known, tuple(map(StreamName, deleted))))

    def pass_time(self, ns: int) -> None:
        """Move time on, with the ticks that were asked for; what they have written is committed."""
        end = MonotonicNs(self.now + ns)
        ticks = 0
        while self.timer <= end:
            ticks += 1
            assert ticks < 1_000, "a timer that is set again and again"
            self.now, self.timer = max(self.now, self.timer), NEVER
            self.give(Tick())
            self.commit()
        self.now = end

    # --- questions, answered at last ------------------------------------------------------------------------

    def answer(self, kind: type[AnswerT], request: GroupRequest, group: str = READERS) -> AnswerT:
        question = self.ask(request, group)
        self.commit()
        answer = self.answers[question]
        assert isinstance(answer, kind), answer
        return answer

    def error(self, request: GroupRequest, group: str = READERS) -> JetstreamError:
        return self.answer(RequestFailed, request, group).error

    def failure(self, question: QuestionId) -> type[JetstreamError]:
        answer = self.answers[question]
        assert isinstance(answer, RequestFailed), answer
        return type(answer.error)

    def join(self, client: str, *streams: str, group: str = READERS, **more: object) -> Assignment:
        return self.answer(Assignment, joining(client, *streams, **more), group)

    def release(self, member: str, claims: Sequence[Claim]) -> QuestionId:
        return self.ask(Release(ConnectionId(member), MemberId(member), tuple(claims)))

    def leave(self, member: str) -> QuestionId:
        return self.ask(Leave(ConnectionId(member), MemberId(member)))

    def settle(self) -> None:
        """Let everybody give up what it is asked for."""
        for member, share in self.state().shares().items():
            self.release(member, share.gives_up)
            self.commit()

    def beat(
        self, *members: str, generation: int, wait: int = 0, connection: str = "shared", group: str = READERS
    ) -> QuestionId:
        question = self.new_question()
        beats = tuple(
            (GroupName(group), Beat(MemberId(member), Generation(generation))) for member in members
        )
        self.give(Beats(question, ConnectionId(connection), beats, wait))
        return question

    def news(self, question: QuestionId) -> HeartbeatAnswer:
        answer = self.answers[question]
        assert isinstance(answer, HeartbeatAnswer), answer
        return answer

    # --- what is durable ------------------------------------------------------------------------------------

    def state(self, group: str = READERS) -> GroupState:
        return self.table.state(GroupName(group)) or GroupState(GroupName(group))

    def fetched(self, *partitions: Partition, group: str = READERS) -> list[int]:
        """Return the offsets of a group's cursors, as they are told."""
        (question,) = (self.ask(LookUpCursors(partitions or tuple(map(orders, range(4)))), group),)
        answer = self.answers[question]
        return [cursor.offset for cursor in answer.cursors]  # type: ignore[union-attr] # or it fails


def audit(work: ShardAtWork) -> None:
    """Compare what the shard holds to be durable with what its log says."""
    held, says = work.table, table_of(work.log)
    assert sorted(held) == sorted(says)
    for group in says:
        assert held.state(group) == says.state(group)
        assert _timeless(held.cursors_of(group)) == _timeless(says.cursors_of(group))
    assert (held.members, held.cursors) == (says.members, says.cursors)


def _timeless(cursors: Mapping[Partition, GroupCursorRecord]) -> list[GroupCursorRecord]:
    """Return cursors without when they were committed: several have a write's timestamp."""
    return sorted(cursor._replace(committed_at=TimestampUs(0)) for cursor in cursors.values())


def two_members() -> ShardAtWork:
    """Return a shard with a group in which ``a.1`` and ``b.1`` own two of four partitions each."""
    work = ShardAtWork()
    work.join("a")
    work.join("b")
    work.settle()
    assert work.state().generation == 3
    return work


def joining(client: str, *streams: str, **more: object) -> Join:
    return join(client, *(streams or ("orders",)), **more)  # type: ignore[arg-type] # fields by name


def committing(
    member: str,
    *places: NewCursor,
    generation: int = 1,
    request: int = 1,
    is_reset: bool = False,
) -> StoreCursors:
    return StoreCursors(
        connection=ConnectionId(member),
        member_id=MemberId(member),
        request=request,
        generation=Generation(generation),
        cursors=places,
        instance_id=None,
        is_reset=is_reset,
    )
