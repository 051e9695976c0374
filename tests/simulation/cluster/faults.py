"""What goes wrong in whole clusters: which of it, when, and how all of it ends."""

from collections.abc import Sequence

from envelope.types import NodeId
from metadata.raft.events import TransferLeadership
from tests.simulation.cluster.link_faults import LinkFaults
from tests.simulation.cluster.node import ClusterNode
from tests.simulation.cluster.operator import Operator
from tests.simulation.cluster.world import World
from tests.simulation.replica.disk_faults import DiskFaults
from tests.simulation.replica.fault_schedule import FaultSchedule, kinds_of_all
from tests.simulation.replica.process_faults import ProcessFaults
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets, names


class Faults(FaultSchedule):
    """Those of a cluster in which every node is a voter too."""

    def __init__(self, world: World, operator: Operator, publishers: Sequence[str]) -> None:
        self._whole, self._nodes = world, world.nodes
        to, self._links = Targets(world.replicas, world.nodes), LinkFaults(world)
        links = self._links
        disks = DiskFaults(world.replicas, to, links.moment)
        processes = ProcessFaults(world.replicas, to, links.moment, disks)
        majority = len(world.nodes) // 2 + 1
        kinds = kinds_of_all(to, processes, disks, links, publishers) | {
            "kill_steward": lambda: processes.kill(self._stewards()),
            "kill_majority": lambda: processes.kill(to.some(majority)),
            "restart_at_once": processes.restart_at_once,
            "pause_steward": lambda: processes.pause(self._stewards()),
            "isolate_steward": lambda: links.isolate("isolate_steward", names(self._stewards())),
            "isolate_both": self._isolate_both,
            "freeze_both": self._freeze_both,
            "ring": links.cut_to_ring,
            "bridge": links.cut_to_bridge,
            "disconnect": self._disconnect,
            "transfer": self._transfer,
            "restart_bus": self._restart_bus,
            "jump_a_lease": self._jump_a_lease,
            "sync_error": self._fail_sync,
            "elect": operator.elect,
            "reassign": operator.reassign,
        }
        super().__init__(world.replicas, to, processes, kinds, world.swarm.faults)

    def end(self) -> None:
        """End every fault."""
        world = self._whole
        bus = world.replicas.bus
        for name in bus.restart():
            bus.come_back(name)
        networks = (world.raft.network, world.saying, world.replicas.network, bus.network)
        self.heal(networks, lambda node: len(world.nodes) > 2 and world.raft.can_do_without([node]))
        for node in self._nodes.values():
            node.voter.writer.calm()

    def _stewards(self) -> list[ClusterNode]:
        """Return the nodes that believe they lead the metadata log."""
        return [node for node in self._nodes.values() if node.voter.leading]

    # --- faults of the two together ---------------------------------------------------------------------

    def _isolate_both(self) -> None:
        """Cut a controller driver and the leader of a stream off from all others, together."""
        inside = {node.name for node in (*self._stewards(), *self._targets.leaders())}
        if len(inside) < len(self._nodes):
            self._links.isolate("isolate_both", sorted(inside))

    def _freeze_both(self) -> None:
        """A controller driver stands still, and a node that leads a stream hears of no other for a while."""
        world, rng = self._whole, self._whole.rng
        leading = names(self._targets.leaders())
        leaders = [node for node in self._nodes.values() if node.name in leading and not node.voter.leading]
        for steward in self._stewards()[:1]:
            for leader in leaders[:1]:
                timeout = world.swarm.raft.election_timeout
                frozen = int(timeout * rng.uniform(1.5, 4))
                world.replicas.fault("freeze_both", f"{steward.name} and {leader.name}")
                self._links.isolate_from_metadata([steward.name, leader.name], frozen + 2 * LEASE)
                steward.pause()
                world.timeline.after(frozen, self._thaw, steward)

    def _thaw(self, node: ClusterNode) -> None:
        if node.paused:
            node.resume()

    def _disconnect(self) -> None:
        """Break the connections of two nodes."""
        if len(self._nodes) > 1:
            one, other = self._whole.rng.sample(list(self._nodes.values()), 2)
            self._whole.replicas.fault("disconnect", f"{one.name}-{other.name}")
            self._whole.raft.network.break_off(one.name, other.name)
            self._whole.saying.break_off(one.name, other.name)
            self._whole.replicas.connections.break_off(one.name, other.name)
            one.peer_lost(other.name, refused=not other.alive)
            other.peer_lost(one.name, refused=not one.alive)

    def _transfer(self) -> None:
        """Have a metadata leader hand over."""
        for node in self._stewards():
            others = [name for name in self._nodes if name != node.name]
            if others:
                target = self._whole.rng.choice(others)
                self._whole.replicas.fault("transfer", f"{node.name} to {target}")
                node.voter.tell(TransferLeadership(target))

    def _restart_bus(self) -> None:
        """Restart NATS: everybody loses what is under way, and subscribes again."""
        world = self._whole
        world.replicas.fault("restart_bus", "")
        down = self._links.moment() // 4
        for name in world.replicas.bus.restart():
            world.timeline.after(down + world.replicas.delay(LEASE // 10), world.replicas.bus.come_back, name)

    def _jump_a_lease(self) -> None:
        """Let the clock of whoever leads something skip about as much as its lease lasts."""
        rng, leases = self._whole.rng, self._whole.replicas.checks.leases
        for node in rng.choice((self._targets.leaders(), self._stewards())):
            left = leases.left(NodeId(node.name))
            by = max(1, left + rng.choice((-LEASE // 50, 0, LEASE // 50, LEASE)))
            self._whole.replicas.fault("jump_a_lease", f"{node.name} by {by / 1e6:.0f} ms")
            node.jump(by)

    def _fail_sync(self) -> None:
        """Let the next sync of a disk fail, of a stream or of the metadata log: the process stops."""
        for node in self._targets.some():
            node.disk.failing = True
