"""The node that runs the coordinator: mailbox, writes, failures. What is decided there is the product's."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from consumer_groups.coordinator import Coordinator
from consumer_groups.coordinator_events import (
    Action,
    Assigned,
    CommitAllowed,
    CommitRequested,
    Event,
    Expire,
    HeartbeatAnswered,
    Join,
    Joined,
    Loaded,
    PartitionsChanged,
    Persist,
    SetTimer,
    Tick,
)
from consumer_groups.group_json import from_json, to_json
from consumer_groups.group_state import GroupState
from consumer_groups.partitions import GroupName, MemberId
from envelope.errors import CorruptDataError
from envelope.types import MonotonicNs, StreamName
from tests.simulation.groups.world import COORDINATOR, Message, World, process_of
from tests.simulation.violation import Violation


class CoordinatorNode:
    """Runs one coordinator after the other; what is durable outlives them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._durable: bytes | None = None
        self._lives = self._ids = 0
        self._machine: Coordinator | None = None
        self._mailbox: deque[Event] = deque()
        self._writing: Persist | None = None
        self._clock = 0
        self._tick_waits = False
        self._timers = self._decided_at = 0
        self.paused = False
        world.network.connect(COORDINATOR, self._receive)
        self.start()

    def start(self) -> None:
        """Let another coordinator begin with what is durable."""
        world = self._world
        self._lives += 1
        self._timers += 1  # those of the former life never come
        self._clock = world.rng.randrange(10**12)
        self._machine = Coordinator(GroupName("g"))
        self._mailbox.clear()
        self._writing, self._tick_waits, self.paused = None, False, False
        world.checks.loaded()
        self._mailbox.append(Loaded(None if self._durable is None else from_json(self._durable)))
        self._mailbox.append(PartitionsChanged(world.existing(), self._deleted()))
        self._pump()

    def fail(self) -> None:
        """End, in the midst of a write too: that is durable or not."""
        world = self._world
        if self._machine is None:
            return
        world.fault("failed_over", str(self._machine))
        if self._writing is not None and world.rng.random() < 0.5:
            world.fault("durable_unsaid", "")
            self._make_durable(self._writing.state)
        self._machine, self._writing = None, None
        for process in world.swarm.processes:
            world.network.break_off(COORDINATOR, process)
            world.network.break_off(COORDINATOR, f"{process}'")
        world.timeline.after(world.delay(world.swarm.heartbeat), self._restart, self._lives)

    def resume(self) -> None:
        """Go on, the timer first: heartbeats wait behind it."""
        self.paused = False
        if self._tick_waits and self._machine is not None:
            self._tick_waits = False
            self._mailbox.appendleft(Tick())
        self._pump()

    def partitions_changed(self, deleted: tuple[StreamName, ...] = ()) -> None:
        """Hear of streams."""
        if self._machine is not None:
            self._mailbox.append(PartitionsChanged(self._world.existing(), deleted))
            self._pump()

    @property
    def rests(self) -> bool:
        """Nothing waits, and nothing is written."""
        return self._machine is not None and not self._mailbox and self._writing is None

    def __str__(self) -> str:
        return str(self._machine)

    def _deleted(self) -> tuple[StreamName, ...]:
        return tuple(name for name in self._world.swarm.streams if name not in self._world.partitions)

    def _fail_in(self, life: int) -> None:
        if life == self._lives:
            self.fail()

    def _restart(self, life: int) -> None:
        if life == self._lives and self._machine is None:
            self.start()

    def _receive(self, message: Message) -> None:
        if self._machine is None:
            return
        if isinstance(message, Join):
            self._ids += 1
            message = replace(message, fresh_id=MemberId(f"m{self._ids}"))
        self._mailbox.append(message)  # type: ignore[arg-type] # clients send events
        self._pump()

    def _pump(self) -> None:
        while self._mailbox and self._machine is not None and self._writing is None and not self.paused:
            event = self._mailbox.popleft()
            world = self._world
            world.steps += 1
            world.checks.given(event)
            actions = self._machine.handle(event, MonotonicNs(world.now + self._clock))
            if world.trace.on:
                world.note("co", f"<- {_text(event)} | {self._machine}")
            world.trace.counts[type(event).__name__.lower()] += 1
            self._perform(actions, event)

    def _perform(self, actions: Sequence[Action], event: Event) -> None:
        world = self._world
        for number, action in enumerate(actions):
            if isinstance(action, Persist):
                self._writing, self._decided_at = action, world.now
                rest = (*action.then, *actions[number + 1 :])
                if "fail_over" in world.swarm.faults and not world.healing and world.rng.random() < 0.03:
                    world.timeline.after(world.delay(world.swarm.write_mean) // 2, self._fail_in, self._lives)
                world.timeline.after(world.delay(world.swarm.write_mean), self._written, self._lives, rest)
                return
            self._say(action, event)

    def _written(self, life: int, rest: Sequence[Action]) -> None:
        if life != self._lives or self._writing is None:
            return
        state, self._writing = self._writing.state, None
        before = self._world.checks.durable
        for action in rest:
            if isinstance(action, Expire) and before is not None:
                self._world.trace.counts[action.cause.name.lower()] += 1
                self._world.checks.expired(action, before)
        self._make_durable(state)
        for action in rest:
            self._say(action, None)
        self._pump()

    def _make_durable(self, state: GroupState) -> None:
        self._durable = to_json(state)
        try:
            state = from_json(self._durable)
        except CorruptDataError as error:
            raise Violation(error.description) from error
        self._world.checks.made_durable(state, self._decided_at)

    def _say(self, action: Action, event: Event | None) -> None:
        world = self._world
        match action:
            case SetTimer(at):
                self._timers += 1
                world.timeline.at(max(world.now, at - self._clock), self._tick, self._timers)
            case Expire() | Persist():
                pass
            case _:
                if isinstance(action, CommitAllowed):
                    assert isinstance(event, CommitRequested)
                    world.checks.allowed(event)
                if isinstance(action, Joined | Assigned):
                    world.checks.said(action.assignment)
                elif isinstance(action, HeartbeatAnswered):
                    for assignment in action.assignments:
                        world.checks.said(assignment)
                world.trace.counts[type(action).__name__.lower()] += 1
                world.network.send((COORDINATOR, process_of(action.connection)), action)

    def _tick(self, timer: int) -> None:
        if timer != self._timers or self._machine is None:
            return
        if self.paused:
            self._tick_waits = True
        else:
            self._mailbox.append(Tick())
            self._pump()


def _text(event: Event) -> str:
    """Return an event for the trace, the same in every process: sets have no order."""
    match event:
        case Join():
            streams = ",".join(sorted(event.streams))
            who = f"{event.client}/{event.request} as {event.member_id or event.fresh_id}"
            return f"Join {who} instance={event.instance_id} streams={streams}"
        case Loaded(state):
            return f"Loaded g{0 if state is None else state.generation}"
        case _:
            return str(event)
