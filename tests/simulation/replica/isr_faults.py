"""The loss of everybody who is in sync while somebody else lives; and the operator who puts up with it."""

from collections.abc import Sequence

from envelope.types import NodeId, StreamName
from metadata.catalog.tables import Stream
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.process_faults import ProcessFaults
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets


class IsrFaults:
    """Keeps whole ISRs dead for so long that another is elected, if one may be."""

    def __init__(self, world: ServiceWorld, targets: Targets, processes: ProcessFaults) -> None:
        self._world, self._targets, self._processes = world, targets, processes

    def lose(self) -> None:
        """Take a replica away until it is not in sync, then kill the ISR, with its disks at times."""
        world, stream = self._world, self._targets.stream()
        others = [name for name in stream.replicas if name != stream.leader]
        if not others:
            return
        outsider = world.rng.choice(others)
        lagging = 2 * world.swarm.settings.replica_lag_max_ns + world.delay(LEASE)
        world.fault("lose_isr", f"{stream.name} without {outsider}")
        if outsider in stream.isr_nodes:
            self._take_away([outsider], lagging)
        else:
            lagging = 1
        world.timeline.after(lagging, self._strike, stream.name)

    def take_followers_away(self) -> None:
        """Kill all of an ISR but the leader, mostly for longer than the dedupe window; at times it, too."""
        world, stream = self._world, self._targets.stream()
        window = world.swarm.shape_of(stream.name).dedupe_window
        followers = [name for name in stream.isr_nodes if name != stream.leader]
        length = int(window * world.rng.uniform(0.4, 3.0))
        world.fault("followers_away", f"of {stream.name} for {length / 1e6:.0f} ms")
        self._take_away(followers, length)
        if stream.leader is not None and world.rng.random() < 0.4:
            leader = self._targets.nodes[stream.leader]
            world.timeline.after(world.delay(length), self._processes.kill, [leader])

    def elect(self) -> None:
        """An operator names any node that has a replica of a stream to lead it, whatever that holds."""
        metadata, stream = self._world.metadata, self._targets.stream()
        if not metadata.down:
            node = self._world.rng.choice(stream.holders)
            if metadata.order_election(stream.name, node):
                self._world.fault("ordered", f"{stream.name} to be led by {node}")

    def _strike(self, name: StreamName) -> None:
        world = self._world
        if world.healing:
            return
        stream = self._row(name)
        for member in stream.isr_nodes:
            node = self._targets.nodes[member]
            wiped = world.rng.random() < 0.4
            world.fault("wipe" if wiped else "kill", f"{member} of the ISR of {name}")
            self._take_away([member], world.delay(3 * LEASE) + LEASE)
            if wiped:
                node.wipe()

    def _take_away(self, names: Sequence[NodeId], length: int) -> None:
        """Kill nodes, and start them only after ``length``, or when all is healed."""
        for name in names:
            node = self._targets.nodes[name]
            if node in self._processes.left_dead:
                continue
            self._processes.left_dead.append(node)
            if node.alive:
                self._processes.died(name)
            self._world.timeline.after(length, self._bring_back, node)

    def _bring_back(self, node: SimulatedNode) -> None:
        if not self._world.healing and node in self._processes.left_dead:
            self._processes.left_dead.remove(node)
            self._processes.restart(node)

    def _row(self, name: StreamName) -> Stream:
        stream = self._world.metadata.catalog.stream(name)
        assert stream is not None, f"{name} exists"
        return stream
