"""One machine: its disk, its clock, and the lives of its process."""

from collections.abc import Callable

from envelope.types import MonotonicNs, NodeId, Offset, StreamName
from tests.simulation.clock import DriftingClock
from tests.simulation.disk_state import DiskState
from tests.simulation.replica.life import Life
from tests.simulation.replica.log_image import LogImage
from tests.simulation.replica.messages import Ack, BusMessage, Message, Publish, Refusal
from tests.simulation.replica.world import World


class SimulatedNode:
    """Can be killed, started, paused, resumed, wiped; ``died`` is told when its process ends by itself."""

    def __init__(self, world: World, name: NodeId, died: Callable[[NodeId], None]) -> None:
        rng = world.rng
        self._world, self.name, self._died = world, name, died
        self.clock = DriftingClock(rng.randint(0, 10**12), rng.randint(-1, 1) * world.swarm.drift_ppm)
        self.disk = DiskState()
        self._disks = 0
        self.directory = f"disk-of-{name}"
        self.unsynced_kept = True
        """What this machine wrote without a sync is there: it has not lost power since the cluster heard."""
        self.images = {
            shape.name: world.checks.new_image(self.directory, shape.name)
            for shape in world.swarm.streams
            if name in shape.holders
        }
        self._known: dict[StreamName, Offset] = {}
        self._held: list[Callable[[], None]] = []
        self.paused = False
        self._lives = 0
        self.life: Life | None = None
        world.network.connect(name, self._receive)
        world.bus.connect(name, self._hear)

    @property
    def alive(self) -> bool:
        """Whether the process exists; it may be paused."""
        return self.life is not None

    def leads(self, stream: StreamName) -> bool:
        """Whether its process believes that it leads."""
        return (
            self.life is not None
            and stream in self.life.replicas
            and self.life.replicas[stream].reign is not None
        )

    def lease_left(self) -> int:
        """Return how long its process may still lead, in ns of its own clock."""
        return self.life.lease.until - self.now() if self.life is not None else 0

    def now(self) -> MonotonicNs:
        """Return what the machine's clock shows."""
        return self.clock.local(self._world.timeline.now)

    def jump(self, by: int) -> None:
        """Let the clock skip ``by`` ns."""
        self.clock.jump(self._world.timeline.now, by)

    def known_high_watermark(self, stream: StreamName) -> Offset:
        """Return the high watermark that was on disk when the last life ended."""
        return self._known.get(stream, Offset(0)) if self._world.swarm.keeps_high_watermark else Offset(0)

    def image(self, stream: StreamName) -> LogImage:
        """Return the log of a stream, an empty one if there is none."""
        if stream not in self.images:
            self.images[stream] = self._world.checks.new_image(self.directory, stream)
        return self.images[stream]

    # --- lives ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a life with what is on disk."""
        assert self.life is None, f"{self.name} is alive"
        self._lives += 1
        if self._world.trace.on:
            logs = " ".join(
                f"{name}:[{image.log_start},{image.log_end}) e{image.epochs.last}"
                for name, image in self.images.items()
            )
            self._world.note(self.name, f"starts on {self.directory} with {logs}")
        self.life = Life(self._world, self, self._lives)
        self.life.begin()

    def kill(self, *, power: bool) -> None:
        """End this life; ``power``: and lose what was not synced."""
        life = self.life
        assert life is not None, f"{self.name} is dead"
        self.life, self.paused = None, False
        self._held.clear()
        if power:
            self.unsynced_kept = False
            images = [replica.image for replica in life.replicas.values() if not replica.image.syncs]
            self._world.checks.power_losses.lost(self.directory, [image.copy() for image in images])
        for stream, replica in life.replicas.items():
            self._known[stream] = replica.watermark.offset
            self._world.bus.unsubscribe(self.name, stream)
            replica.writer.crash(power=power)
            self._world.checks.lost(replica.image)
        self._world.connections.ended(self.name)

    def wipe(self) -> None:
        """Get an empty disk, while dead."""
        self._disks += 1
        self.directory = f"disk-{self._disks}-of-{self.name}"
        self.unsynced_kept = False
        self._known.clear()
        self.images = {name: self._world.checks.new_image(self.directory, name) for name in self.images}

    def superseded(self) -> None:
        """The catalogue has a newer start of this node: this one ends itself."""
        life = self.life
        self._world.timeline.after(0, lambda: self._end(life))

    def _end(self, life: Life | None) -> None:
        if life is not None and self.life is life:
            self._world.fault("superseded", self.name)
            self._died(self.name)

    def pause(self) -> None:
        """Do nothing until resumed; what arrives is kept."""
        self.paused = self.alive

    def resume(self) -> None:
        """Do at once, in order, what was kept."""
        self.paused = False
        held, self._held, life = self._held, [], self.life
        for step in held:
            if self.life is life:
                step()

    def hold(self, step: Callable[[], None]) -> None:
        """Take a step of the process now, or once it is resumed."""
        if self.paused:
            self._held.append(step)
        elif self.life is not None:
            step()

    def peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """The process notices that the connection to another node broke."""
        life = self.life
        if life is not None:
            self.hold(lambda: life.tell(lambda replica: replica.peer_lost(peer, refused=refused)))

    def peer_found(self, peer: NodeId) -> None:
        """The process has a connection to another node again."""
        life = self.life
        if life is not None:
            self.hold(lambda: life.tell(lambda replica: replica.peer_found(peer)))

    def _receive(self, message: Message) -> None:
        life = self.life
        if life is not None:
            self.hold(lambda: life.receive(message))

    def _hear(self, message: BusMessage) -> None:
        life = self.life
        assert not isinstance(message, Ack | Refusal), "nodes publish nothing"
        publish: Publish = message
        if life is not None:
            self.hold(lambda: life.publish(publish))
