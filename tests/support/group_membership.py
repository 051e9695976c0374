"""A member with a shell around it that does nothing by itself, and such members with a coordinator."""

from collections.abc import Iterator
from dataclasses import replace

from consumer_groups.assignment.partitions import Claim, Generation, InstanceId, MemberId, Partition
from consumer_groups.coordinator.events import (
    Answer,
    Assigned,
    Assignment,
    ConnectionId,
    CoordinatorRefusal,
    HeartbeatAnswered,
    Join,
    Joined,
    JoinRefused,
    Leave,
    Left,
    MemberHeartbeat,
    MemberRefused,
    Release,
    SetTimer,
    Tick,
)
from consumer_groups.coordinator.group_state import ClientId
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.member.events import (
    CoordinatorFound,
    Ended,
    LocateCoordinator,
    Lost,
    MemberAction,
    MemberEvent,
    MemberRequest,
    StartReading,
    StoppedReading,
    StopReading,
    Subscribed,
)
from consumer_groups.member.member import Member, Terms
from envelope.errors import JetstreamError
from envelope.types import MonotonicNs, StreamName
from tests.support.group_coordination import REBALANCE, SECOND, SESSION, Group


def claim(number: int, generation: int, stream: str = "orders") -> Claim:
    return Claim(Partition(StreamName(stream), number), Generation(generation))


def refusal(error: type[JetstreamError]) -> CoordinatorRefusal:
    return CoordinatorRefusal(error, "because")


def subscribed(*streams: str) -> Subscribed:
    return Subscribed(frozenset(map(StreamName, streams or ("orders",))))


class Reader:
    """One member, and what it was told to do."""

    def __init__(self, name: str = "a", instance: str | None = None) -> None:
        self.name = name
        self.client = ClientId(name)
        instance_id = None if instance is None else InstanceId(instance)
        self.machine = Member(Terms(self.client, SESSION, REBALANCE, instance_id))
        self.now = MonotonicNs(SECOND)
        self.timer = NEVER
        self.reads: set[Claim] = set()
        self.stopping: set[Claim] = set()
        self.ever_read: set[Claim] = set()
        self.lost: list[Claim] = []
        self.looks = False
        self.ended: Ended | None = None

    @property
    def connection(self) -> ConnectionId:
        return ConnectionId(self.name)

    def give(self, event: MemberEvent) -> list[MemberAction]:
        """Return what the machine wants, having done what a shell does at once."""
        actions = list(self.machine.handle(event, self.now))
        for action in actions:
            self._perform(action)
        return actions

    def _perform(self, action: MemberAction) -> None:
        assert self.ended is None, f"{action} after the end"
        match action:
            case StartReading(claims):
                assert not self.ever_read & set(claims), f"{claims} are read twice"
                assert not {each.partition for each in claims} & {each.partition for each in self.held}
                self.reads |= set(claims)
                self.ever_read |= set(claims)
            case StopReading(claims):
                assert self.reads >= set(claims), f"{claims} are not read"
                self.reads -= set(claims)
                self.stopping |= set(claims)
            case Lost(claims):
                assert self.held >= set(claims), f"{claims} are not held"
                self.reads -= set(claims)
                self.stopping -= set(claims)
                self.lost += claims
            case Release(_, _, claims):
                assert not self.held & set(claims), f"{claims} are released, and held"
            case SetTimer(at):
                self.timer = at
            case LocateCoordinator():
                self.looks = True
            case Ended():
                self.ended = action
            case _:
                pass

    @property
    def held(self) -> set[Claim]:
        """What nobody else may be given: it is read, or not committed."""
        return self.reads | self.stopping

    def subscribe(self, *streams: str) -> list[MemberAction]:
        return self.give(subscribed(*streams))

    def find(self) -> list[MemberAction]:
        self.looks = False
        return self.give(CoordinatorFound(self.connection))

    def join(self, *keeps: Claim, generation: int = 1) -> list[MemberAction]:
        """Come in, as ``a.1`` with ``keeps``."""
        self.subscribe()
        self.find()
        return self.give(self.joined(*keeps, generation=generation))

    def joined(self, *keeps: Claim, generation: int = 1, request: int = 1) -> Joined:
        assignment = Assignment(MemberId(f"{self.name}.{request}"), Generation(generation), keeps)
        return Joined(self.connection, self.client, request, assignment)

    def assigned(
        self, generation: int, *keeps: Claim, gives_up: tuple[Claim, ...] = (), member: str = "a.1"
    ) -> list[MemberAction]:
        assignment = Assignment(MemberId(member), Generation(generation), keeps, gives_up)
        return self.give(Assigned(self.connection, assignment))

    def refused(self, error: type[JetstreamError], member: str = "a.1") -> list[MemberAction]:
        return self.give(MemberRefused(self.connection, MemberId(member), refusal(error)))

    def tick(self) -> list[MemberAction]:
        """Let the time of the timer come."""
        assert self.timer != NEVER, "no timer is set"
        self.now, self.timer = max(self.now, self.timer), NEVER
        return self.give(Tick())

    def stopped(self, *claims: Claim) -> list[MemberAction]:
        """Be done with these, or with all that is to be given up."""
        return self.give(self.is_done(*claims))

    def is_done(self, *claims: Claim) -> StoppedReading:
        done = claims or tuple(sorted(self.stopping))
        self.stopping -= set(done)
        return StoppedReading(done)


class Members:
    """Members and their coordinator, with whatever is on its way between them."""

    def __init__(self, *readers: Reader, partitions: int = 4) -> None:
        self.group = Group(partitions)
        self.readers = list(readers)
        self.asked: list[MemberRequest | MemberHeartbeat] = []
        self.answers: list[Answer] = []
        self._fresh = 0

    def give(self, reader: Reader, event: MemberEvent) -> None:
        for action in reader.give(event):
            if isinstance(action, Join | Release | Leave):
                self.asked.append(action)
        if reader.looks:
            reader.looks = False
            self.give(reader, CoordinatorFound(reader.connection))

    def ask(self, place: int) -> None:
        """Let one request arrive."""
        asked = self.asked.pop(place)
        if isinstance(asked, Join):
            self._fresh += 1
            asked = replace(asked, fresh_id=MemberId(f"{asked.client}.{self._fresh}"))
        self.answers += [said for said in self.group.give(asked) if isinstance(said, Answer)]

    def answer(self, place: int) -> None:
        """Let one answer arrive."""
        answer = self.answers.pop(place)
        for reader in self.readers:
            for event in _events_for(reader, answer):
                self.give(reader, event)

    def beat(self, reader: Reader) -> None:
        if (beat := reader.machine.beat) is not None:
            self.asked.append(MemberHeartbeat(reader.connection, (beat,)))

    def replace_coordinator(self) -> None:
        """Let another coordinator begin with what is durable."""
        replaced, self.group = self.group, Group(0, self.group.state)
        self.group.now = replaced.now

    def settle(self) -> None:
        """Let everything arrive, and everybody be done with what is to be given up, until all is quiet."""
        for _ in range(30):
            for reader in self.readers:
                self.beat(reader)
                self.give(reader, Tick())
                self.give(reader, reader.is_done())
            while self.asked:
                self.ask(0)
            while self.answers:
                self.answer(0)


def _events_for(reader: Reader, answer: Answer) -> Iterator[MemberEvent]:
    match answer:
        case Joined() | JoinRefused():
            if answer.client == reader.client:
                yield answer
        case Assigned() | MemberRefused() | Left():
            yield answer
        case HeartbeatAnswered(connection, assignments, refused):
            for assignment in assignments:
                yield Assigned(connection, assignment)
            for member_id, why in refused:
                yield MemberRefused(connection, member_id, why)
        case _:
            pass
