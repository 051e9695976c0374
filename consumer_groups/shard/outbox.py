"""The actions of the groups of a shard, in one order; and the group of each write."""

from collections import deque

from consumer_groups.assignment.partitions import GroupName
from consumer_groups.coordinator.events import Answer as CoordinatorAnswer
from consumer_groups.coordinator.events import (
    Assigned,
    CommitAllowed,
    CommitRefused,
    Expire,
    HeartbeatAnswered,
    Joined,
    JoinRefused,
    Left,
    MemberRefused,
    SetTimer,
)
from consumer_groups.shard.events import (
    Answer,
    Expired,
    QuestionId,
    Reply,
    RequestFailed,
    ShardAction,
    Write,
    WriteNumber,
)
from consumer_groups.shard.records import GroupRecord
from envelope.errors import JetstreamError
from envelope.types import MonotonicNs


class Outbox:
    """Gathers the actions of one event.

    Invariants:
        H1: writes are settled in the order of their numbers, each of them once.
    """

    def __init__(self) -> None:
        self._actions: list[ShardAction] = []
        self._under_way: deque[GroupName] = deque()
        self._settled = WriteNumber(0)

    def write(self, group: GroupName, records: tuple[GroupRecord, ...]) -> WriteNumber:
        """Add the write of a group's records."""
        assert records, "a write has records"
        self._under_way.append(group)
        number = WriteNumber(self._settled + len(self._under_way))
        self._actions.append(Write(number, records))
        return number

    def settle(self, number: WriteNumber) -> GroupName:
        """Return whose write it is that was committed, or refused."""
        assert number == self._settled + 1, f"H1: write {number} after {self._settled}"
        assert self._under_way, f"H1: write {number} was never begun"
        self._settled = number
        return self._under_way.popleft()

    def reply(self, question: QuestionId | None, answer: Answer) -> None:
        """Answer a question, if there was one."""
        if question is not None:
            self._actions.append(Reply(question, answer))

    def refuse(self, question: QuestionId | None, error: JetstreamError) -> None:
        """Answer a question, if there was one, with what is wrong."""
        self.reply(question, RequestFailed(error))

    def expire(self, group: GroupName, expired: Expire) -> None:
        """Report that a member was put out."""
        self._actions.append(Expired(group, expired.member_id, expired.cause))

    def set_timer(self, at: MonotonicNs) -> None:
        """Schedule a `Tick` at ``at``."""
        self._actions.append(SetTimer(at))

    def take(self) -> tuple[ShardAction, ...]:
        """Return what was gathered, and begin anew."""
        actions, self._actions = tuple(self._actions), []
        return actions


def answer_of(said: CoordinatorAnswer) -> Answer:
    """Return what a coordinator says to who has asked it, as it is told."""
    match said:
        case Joined() | Assigned():
            return said.assignment
        case Left():
            return said
        case JoinRefused() | MemberRefused() | CommitRefused():
            return RequestFailed(said.refusal.as_error())
        case HeartbeatAnswered() | CommitAllowed() | Expire():
            raise AssertionError(f"{said} is not told like that")
