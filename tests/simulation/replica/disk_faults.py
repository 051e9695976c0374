"""What goes wrong with disks, short of their loss."""

from collections.abc import Callable

from envelope.types import Offset
from tests.simulation.replica.node import SimulatedNode
from tests.simulation.replica.targets import Targets
from tests.simulation.replica.world import World


class DiskFaults:
    """Slow and full disks, and retention."""

    def __init__(self, world: World, targets: Targets, moment: Callable[[], int]) -> None:
        self._world, self._targets, self._moment = world, targets, moment

    def slow_down(self, kind: str, slowness: int) -> None:
        """Slow any disk down by that factor for a moment."""
        victim = self._targets.some()[0]
        self._world.fault(kind, victim.name)
        self.slow_one_down(victim, slowness)

    def slow_any_down(self) -> None:
        """Slow any disk down a little for a moment."""
        self.slow_down("slow_disk", self._world.rng.choice((3, 10)))

    def slow_one_down(self, node: SimulatedNode, slowness: int) -> None:
        """Slow this disk down by that factor for a moment."""
        node.disk.slowness = slowness
        self._world.timeline.after(self._moment(), self._hurry, node)

    def _hurry(self, node: SimulatedNode) -> None:
        node.disk.slowness = 1

    def fill(self) -> None:
        """Let a disk be full for a moment."""
        victim = self._targets.some()[0]
        self._world.fault("full_disk", victim.name)
        victim.disk.full = True
        self._world.timeline.after(self._moment(), self._make_space, victim)

    def _make_space(self, node: SimulatedNode) -> None:
        node.disk.full = False

    def trim(self) -> None:
        """Remove old records, as retention does."""
        node = self._targets.some()[0]
        if node.life is None or node.paused:
            return
        for replica in node.life.replicas.values():
            image = replica.image
            known = min(replica.watermark.offset, image.durable_end)
            places = [end for end in image.boundaries() if end <= known]
            if places and replica.writer.idle:
                offset = Offset(self._world.rng.choice(places))
                self._world.fault("trim", f"{replica.title} to {offset}")
                replica.trim(offset)
