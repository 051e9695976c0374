"""What goes wrong around the replicas: which of it, when, and how all of it ends."""

from collections.abc import Callable, Mapping, Sequence

from envelope.types import NodeId
from tests.simulation.replica.disk_faults import DiskFaults
from tests.simulation.replica.link_faults import LinkFaults
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.process_faults import ProcessFaults
from tests.simulation.replica.reign_faults import ReignFaults
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets, names
from tests.simulation.replica.world import World


class Faults:
    """Draws a fault of the cluster's kinds every now and then, until it is told to heal."""

    def __init__(
        self, world: World, nodes: Mapping[NodeId, SimulatedNode], publishers: Sequence[str]
    ) -> None:
        self._world, self._nodes = world, nodes
        self._targets = to = Targets(world, nodes)
        links = LinkFaults(world, list(nodes))
        disks, reigns = DiskFaults(world, to, links), ReignFaults(world, to, links)
        self._processes = processes = ProcessFaults(world, to, links, disks)
        self._kinds: dict[str, Callable[[], None]] = {
            "kill_one": lambda: processes.kill(to.some()),
            "kill_leader": lambda: processes.kill(to.leaders()),
            "kill_isr": lambda: processes.kill(to.members()),
            "kill_all": lambda: processes.kill(list(nodes.values())),
            "stop_one": processes.stop,
            "restart_follower": processes.restart_at_once,
            "pause_one": lambda: processes.pause(to.some()),
            "pause_leader": lambda: processes.pause(to.leaders()),
            "wipe": processes.wipe,
            "isolate_one": lambda: links.isolate("isolate_one", names(to.some())),
            "isolate_leader": lambda: links.isolate("isolate_leader", names(to.leaders())),
            "cut_metadata": lambda: links.cut_metadata("cut_metadata", names(to.some())),
            "cut_leaders_metadata": lambda: links.cut_metadata("cut_leaders_metadata", names(to.leaders())),
            "one_way": links.cut_one_way,
            "halves": lambda: links.isolate("halves", names(to.some(len(nodes) // 2))),
            "clog": links.clog,
            "disconnect": reigns.disconnect,
            "cut_bus": lambda: links.cut_bus(names(to.some()), publishers),
            "slow_disk": lambda: disks.slow_down("slow_disk", world.rng.choice((3, 10))),
            "stalled_disk": lambda: disks.slow_down("stalled_disk", 100),
            "full_disk": disks.fill,
            "clock_jump": processes.jump,
            "hand_over": reigns.hand_over,
            "there_and_back": reigns.there_and_back,
            "reassign": reigns.reassign,
            "metadata_down": reigns.take_down,
            "trim": disks.trim,
        }
        self._plan()

    @property
    def left_dead(self) -> set[NodeId]:
        """Nodes that are not to be started again for now."""
        return set(names(self._processes.left_dead))

    def died(self, name: NodeId) -> None:
        """A process ends by itself."""
        self._processes.died(name)

    def heal(self) -> None:
        """End every fault; but sometimes a node stays dead until `revive`."""
        world, targets, processes = self._world, self._targets, self._processes
        world.network.heal()
        world.bus.network.heal()
        world.network.weather.calm(LEASE // 50)
        world.bus.network.weather.calm(LEASE // 50)
        spare = [node for node in targets.some() if world.rng.random() < 0.3 and targets.is_spare(node)]
        processes.left_dead = spare
        world.fault("healed", f"without {' '.join(names(spare)) or 'exception'}")
        processes.kill(spare)
        if world.metadata.down:
            world.metadata.come_back()
        for node in self._nodes.values():
            node.disk.slowness, node.disk.full = 1, False
            if node.paused:
                node.resume()
            processes.restart(node)

    def revive(self) -> None:
        """Start those too that stayed dead."""
        dead, self._processes.left_dead = self._processes.left_dead, []
        for node in dead:
            self._world.fault("revived", node.name)
            self._processes.restart(node)

    def _plan(self) -> None:
        interval = self._world.swarm.fault_interval
        self._world.timeline.after(self._world.delay(interval) + 1, self._strike)

    def _strike(self) -> None:
        if not self._world.healing:
            kind = self._world.rng.choice(self._world.swarm.faults)
            self._world.trace.counts[f"strike_{kind}"] += 1
            self._kinds[kind]()
            self._plan()
