"""One voter's machine: its disk, its clock and timer, and the lives of its process."""

import itertools
from collections.abc import Callable, Collection

from envelope.types import NodeId
from metadata.raft.events import Event, MessageReceived, Persist, Persisted, Tick, TransferLeadership
from tests.simulation.clock import DriftingClock
from tests.simulation.disk_state import DiskState
from tests.simulation.raft.description import persist_text
from tests.simulation.raft.life import Answer, Life
from tests.simulation.raft.timer import Timer
from tests.simulation.raft.world import World
from tests.simulation.raft.writer import DiskWriter, Writes
from tests.simulation.violation import Violation


class Voter:
    """Can be killed, started, paused and resumed; ``died`` is told when it dies by itself."""

    def __init__(
        self,
        world: World,
        name: NodeId,
        died: Callable[[NodeId], None],
        clock: DriftingClock,
        disk: DiskState | None = None,
    ) -> None:
        """Be dead, with an empty log.

        Args:
            world: where.
            name: its own.
            died: told when it dies by itself.
            clock: the machine's.
            disk: the machine's; None: one that nobody else writes to, and that is well after each restart.
        """
        self._world, self.name, self._died, self._disk = world, name, died, disk
        self.timer = Timer(world.timeline, clock, self._wake)
        others = [voter for voter in world.swarm.machines if voter != name]
        self._heirs = itertools.cycle(others)
        self._held: list[Callable[[], None]] = []
        self.paused = False
        world.network.connect(name, lambda message: self.tell(MessageReceived(message)))
        self.life: Life | None = None
        self.writer = self._new_writer()

    @property
    def alive(self) -> bool:
        """Whether the process exists; it may be paused."""
        return self.life is not None

    @property
    def leading(self) -> bool:
        """Whether its process believes that it leads."""
        return self.life is not None and self.life.leading

    def start(self) -> None:
        """Begin a life with what is durable."""
        assert self.life is None, f"{self.name} is alive"
        self.writer = self._new_writer()
        self.life = Life(self._world, self.name, self.timer.now(), self.writer.put)
        self.plan()

    def kill(self) -> None:
        """End this life; any prefix of the writes under way survives."""
        assert self.life is not None, f"{self.name} is dead"
        self.life, self.paused = None, False
        self.timer.stop()
        del self._world.checks.asked[self.name]
        self._held.clear()
        self.writer.crash()

    def pause(self) -> None:
        """Do nothing until resumed; what arrives is kept."""
        self.paused = self.alive

    def resume(self) -> None:
        """Do at once, in order, what was kept."""
        self.paused = False
        held, self._held = self._held, []
        if self._world.rng.random() < 0.5:
            self._tick_if_due()
        for step in held:
            step()
        self.plan()

    def propose(self, payloads: tuple[bytes, ...], answer: Answer) -> None:
        """Propose for a client; a dead process says nothing."""
        if self.paused:
            self._held.append(lambda: self.propose(payloads, answer))
        elif self.life is not None:
            self.life.propose(payloads, answer, self.timer.now())
            self.plan()

    def change(
        self,
        voters: tuple[NodeId, ...],
        learners: tuple[NodeId, ...],
        answer: Answer,
        *,
        is_late_too: bool = False,
    ) -> None:
        """Change the members, unless the world heals, or then too; a dead process says nothing."""
        if self._world.healing and not is_late_too:
            return
        if self.paused:
            self._held.append(lambda: self.change(voters, learners, answer, is_late_too=is_late_too))
        elif self.life is not None:
            self.life.change(voters, learners, answer, self.timer.now())
            self.plan()

    def read(self, answer: Answer) -> None:
        """Read for a client; a dead process says nothing."""
        if self.paused:
            self._held.append(lambda: self.read(answer))
        elif self.life is not None:
            self.life.read(self._world.new_token(), answer, self.timer.now())
            self.plan()

    def tell(self, event: Event) -> None:
        """Give the machine an event, or keep it while paused."""
        if self.life is None:
            return
        if self.paused:
            self._held.append(lambda: self.tell(event))
            return
        self.life.tell(event, self.timer.now())
        self.plan()

    # --- the disk ------------------------------------------------------------------------------------

    def _new_writer(self) -> DiskWriter:
        world = self._world
        writer = DiskWriter(
            timeline=world.timeline,
            rng=world.rng,
            swarm=world.swarm,
            write=self._write,
            report=self._report,
            fail=self._fail,
        )
        writer.disk = self._disk or writer.disk
        writer.stalled = self._stalled
        return writer

    def _write(self, persist: Persist) -> None:
        if self._world.trace.on:
            text = f"disk: {persist_text(persist)}"
            self._world.trace.line(self._world.timeline.now, self.name, text)
        self._world.checks.write(self.name, persist)

    def _stalled(self) -> None:
        """Ask another to lead, as a voter does whose disk is full."""
        heir = next(self._heirs, None)
        if heir is not None:
            self.tell(TransferLeadership(heir))

    def _report(self, done: Writes) -> None:
        if self.paused:
            self._held.append(lambda: self._report(done))
            return
        for send in [send for persist in done for send in persist.then]:
            message = send.message
            self._world.checks.elections.sent(message)
            self._world.network.send((message.source, message.target), message)
        self.tell(Persisted(done[-1].number))

    def _fail(self, kind: str) -> None:
        self._world.trace.fault(self._world.timeline.now, f"{self.name} {kind}", kind)
        self._died(self.name)

    # --- the timer -----------------------------------------------------------------------------------

    def plan(self) -> None:
        """Wake when the machine wants it."""
        if self.life is not None and not self.paused:
            self.timer.plan(self.life.raft.wake_at)

    def _wake(self) -> None:
        self._tick_if_due()
        self.plan()

    def _tick_if_due(self) -> None:
        if self.life is None or self.paused or not self.timer.is_due(self.life.raft.wake_at):
            return
        self.life.tell(Tick(), self.timer.now())
        if self.timer.is_due(self.life.raft.wake_at):
            raise Violation(f"{self.name} wants a tick at {self.life.raft.wake_at}, which has been")


def is_one_group(voters: Collection[Voter], left_dead: Collection[NodeId]) -> bool:
    """Tell whether all members but ``left_dead`` live, know one leader and have applied all that it has."""
    leaders = [voter for voter in voters if voter.leading]
    if len(leaders) != 1:
        return False
    leader = leaders[0].life
    assert leader is not None, "a leader is alive"
    configuration = leader.raft.configuration
    awaited = configuration.members.difference(left_dead)
    lives = [voter.life for voter in voters if voter.life is not None and voter.name in awaited]
    return (
        not configuration.is_joint
        and len(lives) == len(awaited)
        and all(life.raft.leader == leader.name and life.applied == leader.raft.last_index for life in lives)
    )


def group_text(voters: Collection[Voter]) -> str:
    """Return what every voter is now."""
    return "; ".join(f"{voter.name}: {voter.life and voter.life.raft}" for voter in voters)
