"""What goes wrong with processes, their clocks and whole machines."""

from collections.abc import Callable, Iterable

from envelope.types import NodeId
from tests.simulation.replica.disk_faults import DiskFaults
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.swarm import LEASE
from tests.simulation.replica.targets import Targets
from tests.simulation.replica.world import World


class ProcessFaults:
    """Kills, stops, restarts, pauses and wipes."""

    def __init__(self, world: World, targets: Targets, moment: Callable[[], int], disks: DiskFaults) -> None:
        self._world, self._targets, self._moment, self._disks = world, targets, moment, disks
        self.left_dead: list[SimulatedNode] = []
        """Not to be started again for now."""

    def died(self, name: NodeId) -> None:
        """A process ends: its peers notice sooner or later, and it is started again."""
        world, rng, moment = self._world, self._world.rng, self._moment
        self._targets.nodes[name].kill(power=rng.random() < world.swarm.power)
        for other in self._targets.nodes.values():
            if other.name != name and rng.random() < world.swarm.breaks_off:
                world.connections.break_off(name, other.name)
                world.timeline.after(moment() // 10, self._notice_death, other, name)
        world.timeline.after(moment(), self.restart, self._targets.nodes[name])

    def kill(self, victims: Iterable[SimulatedNode]) -> None:
        """Kill those that are alive; each is started again."""
        for victim in victims:
            if victim.alive:
                self._world.fault("kill", victim.name)
                self.died(victim.name)

    def restart(self, node: SimulatedNode) -> None:
        """Start a node that is dead, unless it is to stay so."""
        if not node.alive and node not in self.left_dead:
            node.start()

    def stop(self) -> None:
        """Announced, so that others may take over its streams; then it is killed."""
        for node in self._targets.some():
            if node.life is not None and not node.paused:
                self._world.fault("stop", node.name)
                node.life.link.stop()
                self._world.timeline.after(self._moment(), self.kill, [node])

    def restart_at_once(self) -> None:
        """Quickly: the leader may not even notice."""
        for node in self._targets.some():
            if node.alive:
                self._world.fault("restart_follower", node.name)
                node.kill(power=self._world.rng.random() < self._world.swarm.power)
                self._world.timeline.after(self._world.delay(LEASE // 50), self.restart, node)

    def _notice_death(self, node: SimulatedNode, dead: NodeId) -> None:
        node.peer_lost(dead, refused=not self._targets.nodes[dead].alive)

    def pause(self, victims: Iterable[SimulatedNode]) -> None:
        """Let processes stand still for a moment."""
        for victim in victims:
            if victim.alive and not victim.paused:
                self._world.fault("pause", victim.name)
                victim.pause()
                self._world.timeline.after(self._moment(), self._resume, victim)

    def _resume(self, node: SimulatedNode) -> None:
        if node.paused:
            self._world.fault("resume", node.name)
            node.resume()

    def wipe(self) -> None:
        """Replace a disk; the last in an ISR is mostly spared, as its stream would be offline after it."""
        for node in self._targets.some():
            if not self._world.swarm.spares_the_last or self._targets.is_spare(node):
                self._world.fault("wipe", node.name)
                if node.alive:
                    self.died(node.name)
                node.wipe()
                if self._world.rng.random() < 0.5:
                    self._disks.slow_one_down(node, 20)
                if self._world.rng.random() < 0.5:
                    self._world.timeline.after(self._world.delay(LEASE // 20), self.restart, node)

    def lose_log(self) -> None:
        """Remove one log from a disk, or all; the last of an ISR is mostly spared."""
        for node in self._targets.some():
            if self._may_lose(node):
                if node.alive:
                    self.died(node.name)
                self._lose_logs(node)

    def lose_log_in_the_dark(self) -> None:
        """Let all machines lose power, and one of them a log; that one comes back before the others."""
        for node in self._targets.some():
            if self._may_lose(node):
                self.kill(list(self._targets.nodes.values()))
                self._lose_logs(node)
                self.restart(node)

    def _may_lose(self, node: SimulatedNode) -> bool:
        spares = self._world.swarm.spares_the_last and self._world.rng.random() < 0.75
        return not spares or self._targets.is_spare(node)

    def _lose_logs(self, node: SimulatedNode) -> None:
        names = sorted(node.images)
        for name in names if self._world.rng.random() < 0.5 else names[:1]:
            self._world.fault("lose_log", f"{node.name} of {name}")
            del node.images[name]
            self._world.checks.log_gone(node.directory, name)

    def jump(self) -> None:
        """Let a clock skip a moment."""
        victim, by = self._targets.some()[0], self._moment()
        self._world.fault("clock_jump", f"{victim.name} by {by / 1e6:.0f} ms")
        victim.jump(by)
