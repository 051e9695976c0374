"""A node that coordinates, or believes that it does: mailbox, leadership, failures. It decides nothing."""

from collections import deque
from dataclasses import replace
from functools import partial

from consumer_groups.assignment.partitions import GroupName, MemberId
from consumer_groups.coordinator.events import Assignment, ConnectionId, Join, SetTimer, StoreCursors, Tick
from consumer_groups.shard.events import (
    Answer,
    Asked,
    Beats,
    ConnectionClosed,
    CursorsCommitted,
    CursorsFound,
    Expired,
    HeartbeatAnswer,
    LookUpCursors,
    QuestionId,
    Reply,
    RequestFailed,
    ShardAction,
    ShardEvent,
    ShardWritten,
    Write,
    WriteNumber,
    WriteRefused,
)
from consumer_groups.shard.records import read_group_key
from consumer_groups.shard.shard import Shard
from envelope.errors import NotEnoughReplicas, NotLeader, UnavailableError
from envelope.types import MonotonicNs, TimestampUs
from tests.simulation.groups.cursor_checks import Floors
from tests.simulation.groups.messages import Heartbeat, Message, Question, Told
from tests.simulation.groups.shard_log import table_of
from tests.simulation.groups.streams import ToldStreams
from tests.simulation.groups.world import World, process_of

_NO_FLOORS: Floors = (0, {})


class CoordinatorNode:
    """Runs one shard after the other."""

    def __init__(self, world: World, place: str) -> None:
        self.place = place
        self.machine: Shard | None = None
        self.is_down = self.paused = False
        self._world = world
        self.reign = self._ids = self._questions_asked = 0
        self._mailbox: deque[Question | ShardEvent] = deque()
        self._questions: dict[QuestionId, tuple[Question, Floors]] = {}
        self._states: dict[WriteNumber, GroupName] = {}
        """Writes that have the state of a group, until they are settled."""
        self._told = ToldStreams(world.streams)
        self._clock = self._timers = 0
        self._tick_waits = False
        world.network.connect(place, self._receive)

    def __str__(self) -> str:
        state = "down" if self.is_down else "paused" if self.paused else ""
        return f"{self.place} {state} reign {self.reign} {self.machine}, {len(self._mailbox)} wait"

    @property
    def leads(self) -> bool:
        """It really does."""
        return self.machine is not None and self.reign == self._world.log.reign

    @property
    def rests(self) -> bool:
        """No group is being changed, and nothing else is asked than what members always ask."""
        asked = (question.body for question, _ in self._questions.values())
        is_usual = all(isinstance(body, Heartbeat | StoreCursors | LookUpCursors) for body in asked)
        return not (self._mailbox or self._states) and is_usual

    # --- its lives ---------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Be elected: begin with what is committed."""
        world = self._world
        assert not self.is_down, f"{self} cannot lead"
        assert not self.paused, f"{self} cannot lead"
        self._drop()
        unsaid = world.log.unsaid
        self.reign = world.log.elect()
        if world.log.unsaid > unsaid:
            world.fault("durable_unsaid", str(world.log.unsaid - unsaid))
        world.leader = self.place
        self._clock = world.rng.randrange(10**12)
        for checks in world.checks.values():
            checks.loaded()
        self.machine = Shard(table_of(world.log.entries), MonotonicNs(world.now + self._clock))
        self._mailbox.append(self._told.tell(self.machine.subscribed))
        self._pump()

    def find_out(self, reign: int) -> None:
        """Hear that another one leads: whatever was asked may have been stored, or not."""
        if self.machine is None or self.reign != reign or self.leads or self.is_down or self.paused:
            return
        self._world.fault("found_out", str(self))
        for question, _ in self._questions.values():
            self._send(question, RequestFailed(UnavailableError("nobody knows whether this was stored")))
        self._drop()

    def fail(self) -> None:
        """End, with all connections."""
        world = self._world
        world.fault("failed_over", str(self))
        self._drop()
        self.is_down, self.paused = True, False
        self._mailbox.clear()
        for process in world.swarm.processes:
            world.network.break_off(self.place, process)
            world.network.break_off(self.place, f"{process}'")

    def resume(self) -> None:
        """Go on, the timer first: heartbeats wait behind it."""
        self.paused = False
        if self._tick_waits:
            self._tick_waits = False
            self._mailbox.appendleft(Tick())
        self._pump()

    def _drop(self) -> None:
        self.machine = None
        self._questions.clear()
        self._states.clear()
        self._told = ToldStreams(self._world.streams)
        self._timers += 1  # those of this reign never come
        self._tick_waits = False
        self._mailbox = deque(each for each in self._mailbox if isinstance(each, Question))

    # --- what it hears -----------------------------------------------------------------------------------

    def streams_changed(self) -> None:
        """Hear of streams, as far as somebody subscribes to them."""
        if self.machine is not None:
            self._mailbox.append(self._told.tell(self.machine.subscribed))
            self._pump()

    def closed(self, connection: ConnectionId) -> None:
        """Hear that a process is gone."""
        if self.machine is not None:
            self._mailbox.append(ConnectionClosed(connection))
            self._pump()

    def _receive(self, message: Message) -> None:
        if not self.is_down and isinstance(message, Question):
            self._mailbox.append(message)
            self._pump()

    def _hear(self, reign: int, number: WriteNumber, at: int | None) -> None:
        if reign != self.reign or self.machine is None:
            return
        if at is None:
            self._mailbox.append(WriteRefused(number, NotEnoughReplicas("one is lacking")))
        else:
            self._mailbox.append(ShardWritten(number, TimestampUs(at)))
        self._pump()

    def _tick(self, timer: int) -> None:
        if timer != self._timers or self.machine is None:
            return
        if self.paused:
            self._tick_waits = True
        else:
            self._mailbox.append(Tick())
            self._pump()

    # --- what it does ------------------------------------------------------------------------------------

    def _pump(self) -> None:
        while self._mailbox and not self.paused:
            message = self._mailbox.popleft()
            if isinstance(message, Question):
                self._take(message)
            elif self.machine is not None:
                self._give(message)

    def _take(self, question: Question) -> None:
        """Ask the machine; where another one may lead by now cursors are not told."""
        world, body = self._world, question.body
        is_confirmed = self.leads or not isinstance(body, LookUpCursors)
        if self.machine is None or not is_confirmed:
            self._send(question, RequestFailed(NotLeader("ask another one")))
            return
        self._questions_asked += 1
        number = QuestionId(self._questions_asked)
        floors = _NO_FLOORS
        if isinstance(body, LookUpCursors):
            floors = world.cursor_checks[question.group].floors(body.partitions)
        self._questions[number] = (question, floors)
        if self.leads:
            world.checks[question.group].given(body)
        if isinstance(body, Heartbeat):
            beats = tuple((question.group, beat) for beat in body.beats)
            self._mailbox.appendleft(Beats(number, question.connection, beats, body.wait_ns))
            return
        asked: ShardEvent = Asked(number, question.group, body)
        if isinstance(body, Join):
            self._ids += 1
            fresh_id = MemberId(f"{self.place}m{self._ids}")
            asked = Asked(number, question.group, replace(body, fresh_id=fresh_id))
        self._mailbox.appendleft(asked)
        if isinstance(body, Join):
            self._mailbox.appendleft(self._told.tell(body.streams))

    def _give(self, event: ShardEvent) -> None:
        world, machine = self._world, self.machine
        assert machine is not None, "there is a machine"
        world.steps += 1
        if isinstance(event, ShardWritten | WriteRefused):
            group = self._states.pop(event.number, None)
            if isinstance(event, WriteRefused):
                world.trace.counts["writerefused"] += 1
                if group is not None and self.leads:
                    world.checks[group].loaded()
        actions = machine.handle(event, MonotonicNs(world.now + self._clock))
        if world.trace.on:
            world.note(self.place, f"<- {_text(event)} | {machine}")
        world.trace.counts[type(event).__name__.lower()] += 1
        for action in actions:
            self._perform(action)

    def _perform(self, action: ShardAction) -> None:
        world = self._world
        match action:
            case Write():
                self._write(action)
            case Reply(number, answer):
                question, floors = self._questions.pop(number)
                _check(world, question, answer, floors)
                self._send(question, answer)
            case Expired(group, member_id, cause):
                world.trace.counts[cause.name.lower()] += 1
                if self.leads:
                    world.checks[group].expired(member_id, cause)
            case SetTimer(at):
                self._timers += 1
                world.timeline.at(max(world.now, at - self._clock), self._tick, self._timers)

    def _write(self, write: Write) -> None:
        world = self._world
        for key, value in write.records:
            found = read_group_key(key)
            if found is not None and found.partition is None and value is not None:
                self._states[write.number] = found.group
                if self.leads:
                    world.checks[found.group].decided(value)
        world.log.append(self.reign, write.number, write.records, partial(self._hear, self.reign))

    def _send(self, question: Question, answer: Answer) -> None:
        self._world.trace.counts[f"said_{type(answer).__name__.lower()}"] += 1
        self._world.network.send((self.place, process_of(question.connection)), Told(question, answer))


def _check(world: World, question: Question, answer: Answer, floors: Floors) -> None:
    body = question.body
    checks, cursors = world.checks[question.group], world.cursor_checks[question.group]
    match answer:
        case Assignment():
            checks.said(answer)
        case HeartbeatAnswer(assignments):
            for group, assignment in assignments:
                world.checks[group].said(assignment)
        case CursorsCommitted(superseded):
            assert isinstance(body, StoreCursors), f"{answer} to {body}"
            if superseded:
                world.trace.counts["commitsuperseded"] += 1
                cursors.superseded(body)
            else:
                cursors.acked(body)
        case CursorsFound():
            cursors.fetched(floors, answer.cursors)
        case RequestFailed(error):
            world.trace.counts[f"refused_{error.err_code}"] += 1
        case _:
            pass


def _text(event: ShardEvent) -> str:
    """Return an event for the trace, the same in every process: sets have no order."""
    if isinstance(event, Asked) and isinstance(event.request, Join):
        join = event.request
        streams = ",".join(sorted(join.streams))
        who = f"{join.client}/{join.request} as {join.member_id or join.fresh_id}"
        return f"Join {who} of {event.group} instance={join.instance_id} streams={streams}"
    return str(event)
