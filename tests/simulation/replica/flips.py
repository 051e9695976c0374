"""Disks that lose bits of what they have stored: on a minority of them the same, and never everywhere."""

from envelope.types import NodeId
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.damages import has_intact
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.reading import damaged_batches
from tests.simulation.replica.targets import Targets
from tests.simulation.replica.world import World


class Flips:
    """Damages durable batches of any replica."""

    def __init__(self, world: World, targets: Targets) -> None:
        self._world, self._targets = world, targets

    def strike(self) -> None:
        """Flip a bit of a stored batch, or of a few neighbours, often of the newest ones."""
        rng, stream = self._world.rng, self._targets.stream()
        logs = {name: self._targets.nodes[name].images.get(stream.name) for name in stream.replicas}
        images = {name: image for name, image in logs.items() if image is not None}
        if not images:
            return
        victim = rng.choice(list(images))
        image = images[victim]
        stored = [batch for batch in image.batches_from(image.origin) if batch.next <= image.durable_end]
        if not stored:
            return
        first = rng.randrange(len(stored)) if rng.random() < 0.6 else max(0, len(stored) - rng.randint(1, 4))
        for batch in stored[first : first + rng.choice((1, 1, 1, 2, 3))]:
            if self._may_be_lost(stream, victim, batch, images):
                self._world.fault("flip", f"{victim}/{stream.name} in {batch.base} of epoch {batch.epoch}")
                image.damage.flip(batch)

    def _may_be_lost(
        self, stream: Stream, victim: NodeId, batch: Batch, images: dict[NodeId, LogImage]
    ) -> bool:
        """Tell whether enough others have the batch as it was; or nobody has it who may lead."""
        nodes = self._targets.nodes
        members = [
            images[member.node_id]
            for member in stream.isr
            if member.node_id != victim
            and member.node_id in images
            and nodes[member.node_id].directory == member.directory
        ]
        if batch.base in images[victim].damage.flipped:
            return False
        if victim not in stream.isr_nodes and not any(_has(image, batch) for image in members):
            return True
        damaged = sum(batch in damaged_batches(image) for image in images.values())
        is_minority = damaged < max(1, (len(images) - 1) // 2)
        return is_minority and any(has_intact(image, batch) for image in members)


def _has(image: LogImage, batch: Batch) -> bool:
    return image.batches_from(batch.base, 1) == [batch]
