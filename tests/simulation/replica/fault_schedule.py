"""When something goes wrong, of the kinds that a cluster has, and how all of it ends."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from envelope.types import NodeId
from tests.simulation.network import Weather
from tests.simulation.replica.disk_faults import DiskFaults
from tests.simulation.replica.process_faults import ProcessFaults
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets, names
from tests.simulation.replica.world import World


class Links(Protocol):
    """A network, as far as it is healed."""

    weather: Weather

    def heal(self) -> None:
        """End every partition and clog."""


class LinkKinds(Protocol):
    """What goes wrong between nodes in every simulator that has replicas."""

    def isolate(self, kind: str, inside: Sequence[NodeId]) -> None:
        """Cut these off from all other nodes."""

    def cut_one_way(self) -> None:
        """Cut any links, each in one direction."""

    def clog(self) -> None:
        """Keep what is sent over a few links until later."""

    def cut_bus(self, nodes: Sequence[NodeId], publishers: Sequence[str]) -> None:
        """Cut nodes off from publishers."""


def kinds_of_all(
    targets: Targets, processes: ProcessFaults, disks: DiskFaults, links: LinkKinds, publishers: Sequence[str]
) -> dict[str, Callable[[], None]]:
    """Return the faults that every simulator has that has replicas."""
    to, nodes = targets, targets.nodes
    return {
        "kill_one": lambda: processes.kill(to.some()),
        "kill_leader": lambda: processes.kill(to.leaders()),
        "kill_all": lambda: processes.kill(list(nodes.values())),
        "stop_one": processes.stop,
        "pause_one": lambda: processes.pause(to.some()),
        "pause_leader": lambda: processes.pause(to.leaders()),
        "wipe": processes.wipe,
        "lose_log": processes.lose_log,
        "lose_log_in_the_dark": processes.lose_log_in_the_dark,
        "isolate_one": lambda: links.isolate("isolate_one", names(to.some())),
        "isolate_leader": lambda: links.isolate("isolate_leader", names(to.leaders())),
        "halves": lambda: links.isolate("halves", names(to.some(len(nodes) // 2))),
        "one_way": links.cut_one_way,
        "clog": links.clog,
        "cut_bus": lambda: links.cut_bus(names(to.some()), publishers),
        "clock_jump": processes.jump,
        "slow_disk": disks.slow_any_down,
        "stalled_disk": lambda: disks.slow_down("stalled_disk", 100),
        "full_disk": disks.fill,
    }


class FaultSchedule:
    """Draws a fault of the cluster's kinds every now and then, until it is told to heal."""

    def __init__(
        self,
        world: World,
        targets: Targets,
        processes: ProcessFaults,
        kinds: Mapping[str, Callable[[], None]],
        drawn: Sequence[str],
    ) -> None:
        """Begin: ``drawn`` are the kinds that this cluster has, each as often as it is frequent."""
        self._world, self._targets, self._processes = world, targets, processes
        self._kinds, self._drawn = kinds, drawn
        self._plan()

    @property
    def left_dead(self) -> set[NodeId]:
        """Nodes that are not to be started again for now."""
        return set(names(self._processes.left_dead))

    def died(self, name: NodeId) -> None:
        """A process ends by itself."""
        self._processes.died(name)

    def heal(self, networks: Sequence[Links], can_do_without: Callable[[NodeId], bool]) -> None:
        """End every fault; but sometimes a node stays dead until `revive`, if one can be done without."""
        world, targets, processes = self._world, self._targets, self._processes
        for network in networks:
            network.heal()
            network.weather.calm(LEASE // 50)
        spare = [
            node
            for node in targets.some()
            if can_do_without(node.name) and world.rng.random() < 0.3 and targets.is_spare(node)
        ]
        processes.left_dead = spare
        world.fault("healed", f"without {' '.join(names(spare)) or 'exception'}")
        processes.kill(spare)
        for node in targets.nodes.values():
            if node.paused:
                node.resume()
            processes.restart(node)
            node.disk.calm()

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
        world = self._world
        if world.healing:
            return
        if world.checks.catalog.count_streams():
            kind = world.rng.choice(self._drawn)
            world.trace.counts[f"strike_{kind}"] += 1
            self._kinds[kind]()
        self._plan()
