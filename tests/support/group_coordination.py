"""A coordinator with everything around it at hand: members that ask, time that is moved, what is durable."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    GroupName,
    MemberId,
    Partition,
    StreamPartitions,
)
from consumer_groups.coordinator.coordinator import Coordinator
from consumer_groups.coordinator.events import (
    Action,
    Assigned,
    Assignment,
    Beat,
    ConnectionId,
    Event,
    HeartbeatAnswered,
    Join,
    Joined,
    JoinRefused,
    Leave,
    Loaded,
    MemberHeartbeat,
    NewCursor,
    PartitionsChanged,
    Persist,
    Release,
    SetTimer,
    StoreCursors,
    Tick,
)
from consumer_groups.coordinator.group_state import ClientId, GroupState
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.group_json import from_json, to_json
from envelope.types import MonotonicNs, StreamName

SECOND = 1_000_000_000
SESSION = 10 * SECOND
REBALANCE = 20 * SECOND
NAME = GroupName("readers")
ActionT = TypeVar("ActionT")


def of_type(kind: type[ActionT], actions: Sequence[Action]) -> list[ActionT]:
    return [action for action in actions if isinstance(action, kind)]


def spoken(actions: Sequence[Action]) -> list[Action]:
    """Return what is said at last, with what waits behind a write."""
    return [said for each in actions for said in (each.then if isinstance(each, Persist) else (each,))]


def join(name: str, *streams: str, request: int = 1, **more: object) -> Join:
    """Return a join whose connection is named like its client, and whose fresh id like both."""
    asked = Join(
        connection=ConnectionId(name),
        client=ClientId(name),
        request=request,
        fresh_id=MemberId(f"{name}.{request}"),
        streams=frozenset(map(StreamName, streams)),
        session_timeout_ns=SESSION,
        rebalance_timeout_ns=REBALANCE,
    )
    return replace(asked, **more)  # type: ignore[arg-type] # fields by name, which mypy cannot tell


def names(claims: Sequence[Claim]) -> list[str]:
    return [str(claim.partition) for claim in claims]


class Group:
    """One group, and the time."""

    def __init__(self, partitions: int = 4, state: GroupState | None = None) -> None:
        self.machine = Coordinator(NAME)
        self.now = MonotonicNs(5 * SECOND)
        self.durable: GroupState | None = state
        self.timer = NEVER
        self.give(Loaded(None if state is None else from_json(to_json(state))))
        if state is None:
            self.partition(orders=partitions)

    @property
    def state(self) -> GroupState:
        return self.machine.state

    def give(self, event: Event) -> list[Action]:
        """Return what is said, behind a write or not."""
        actions = self.machine.handle(event, self.now)
        for action in actions:
            if isinstance(action, Persist):
                assert from_json(to_json(action.state)) == action.state
                self.durable = action.state
            elif isinstance(action, SetTimer):
                self.timer = action.at
        return spoken(actions)

    def partition(self, **counts: int) -> list[Action]:
        changed = tuple(StreamPartitions(StreamName(name), count) for name, count in counts.items())
        return self.give(PartitionsChanged(changed))

    def join(self, client: str, *streams: str, request: int = 1, **more: object) -> Assignment:
        said = self.give(join(client, *(streams or ("orders",)), request=request, **more))
        (joined,) = of_type(Joined, said)
        return joined.assignment

    def refused(self, asked: Join) -> JoinRefused:
        before = self.state
        (said,) = self.give(asked)
        assert isinstance(said, JoinRefused)
        assert self.state is before
        return said

    def release(self, member: str, claims: Sequence[Claim]) -> list[Action]:
        return self.give(Release(ConnectionId(member), MemberId(member), tuple(claims)))

    def leave(self, member: str) -> list[Action]:
        return self.give(Leave(ConnectionId("any"), MemberId(member)))

    def beat(self, *members: str, generation: int | None = None) -> HeartbeatAnswered:
        heard = self.state.generation if generation is None else Generation(generation)
        beats = tuple(Beat(MemberId(member), heard) for member in members)
        (answered,) = of_type(HeartbeatAnswered, self.give(MemberHeartbeat(ConnectionId("shared"), beats)))
        return answered

    def commit(self, member: str, *numbers: int, generation: int, request: int = 1) -> Action:
        cursors = tuple(
            NewCursor(Partition(StreamName("orders"), number), CursorPosition(0)) for number in numbers
        )
        connection, member_id = ConnectionId(member), MemberId(member)
        (said,) = self.give(StoreCursors(connection, member_id, request, Generation(generation), cursors))
        return said

    def pass_time(self, ns: int) -> list[Action]:
        """Move time on, with the ticks that were asked for."""
        end = MonotonicNs(self.now + ns)
        said: list[Action] = []
        ticks = 0
        while self.timer <= end:
            ticks += 1
            assert ticks < 1_000, "a timer that is set again and again"
            self.now, self.timer = max(self.now, self.timer), NEVER
            said += self.give(Tick())
        self.now = end
        return said

    def owned(self) -> dict[str, list[str]]:
        """Return what everybody owns, given up or not."""
        return {
            member: names([*share.keeps, *share.gives_up]) for member, share in self.state.shares().items()
        }

    def settle(self) -> None:
        """Let everybody give up what it is asked for."""
        for member, share in self.state.shares().items():
            self.release(member, share.gives_up)


def assigned(said: Sequence[Action]) -> dict[str, Assignment]:
    """Return who is told what."""
    return {each.assignment.member_id: each.assignment for each in of_type(Assigned, said)}
