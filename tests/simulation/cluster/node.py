"""One machine: a voter of the metadata log and replicas of streams, in one process."""

from collections.abc import Callable

from envelope.types import NodeId
from metadata.raft.events import PeerDisconnected
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.messages.wire import Forwarded
from tests.simulation.cluster.member import Member
from tests.simulation.cluster.world import World
from tests.simulation.raft.voter import Voter
from tests.simulation.replica.node import SimulatedNode


class ClusterNode(SimulatedNode):
    """Whatever happens to the process happens to both."""

    def __init__(self, world: World, name: NodeId, died: Callable[[NodeId], None]) -> None:
        super().__init__(world.replicas, name, died)
        self._whole = world
        self.voter = world.voters[name] = Voter(world.raft, name, died, self.clock, self.disk)
        self.images.clear()  # a log is there once its stream is
        self.jumps = 0
        """How often its clock has skipped something."""
        self.disk.failed = self._sync_failed
        world.saying.connect(name, self._told)

    @property
    def member(self) -> Member | None:
        """The process as a member of the metadata group."""
        link = self.life.link if self.life is not None else None
        return link if isinstance(link, Member) else None

    def start(self) -> None:
        """Begin a life of both."""
        self.voter.start()
        if self._whole.healing:
            self.voter.writer.calm()
        super().start()

    def kill(self, *, power: bool) -> None:
        """End this life of both."""
        super().kill(power=power)
        self.voter.kill()
        for other in self._whole.swarm.nodes:
            if other != self.name:
                self._whole.raft.network.break_off(self.name, other)
                self._whole.saying.break_off(self.name, other)

    def pause(self) -> None:
        """Let both stand still."""
        super().pause()
        if self.paused:
            self.voter.pause()

    def resume(self) -> None:
        """Let both go on; what has gathered for one of them comes first."""
        steps = [super().resume, self.voter.resume]
        for step in self._whole.rng.sample(steps, 2):
            if self.alive:
                step()

    def jump(self, by: int) -> None:
        """Let the clock of both skip ``by`` ns."""
        super().jump(by)
        self.jumps += 1
        self.voter.plan()

    def peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        """Tell both that the connections to another node broke."""
        self.voter.tell(PeerDisconnected(peer, refused))
        super().peer_lost(peer, refused=refused)

    def _told(self, message: NodeMessage | Forwarded) -> None:
        life = self.life
        if life is not None:
            self.hold(lambda: self._tell_member(message))

    def _tell_member(self, message: NodeMessage | Forwarded) -> None:
        member = self.member
        if member is not None:
            member.told(message)

    def _sync_failed(self) -> None:
        self._whole.replicas.fault("sync_failed", self.name)
        self._died(self.name)
