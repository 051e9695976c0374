"""What is damaged is found, not served; and put back only as it was.

It is whole again once nothing goes wrong any more, if anybody who is there has it intact.
"""

from collections.abc import Mapping, Sequence

from envelope.types import NodeId, Offset
from metadata.catalog.tables import Stream
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.reading import damaged_batches
from tests.simulation.violation import Violation


def check_served(name: str, image: LogImage, start: int, end: int) -> None:
    """Check what leaves a replica, for whomever."""
    if start < end and image.damage.overlaps(start, end):
        raise Violation(f"{name}: [{start}, {end}) is served, and is damaged")


def check_filled(name: str, image: LogImage, batches: Sequence[Batch]) -> None:
    """Check what is put back into a log, which remembers what was there."""
    for batch in batches:
        was_there = image.batches_from(batch.base, 1)
        if was_there != [batch]:
            raise Violation(f"{name}: {batch} is put where {was_there} was")


def check_repaired(name: str, image: LogImage, start: Offset, end: Offset) -> None:
    """Check a log in which a hole was filled."""
    if any(low < end and start < high for low, high in image.damage.refused):
        raise Violation(f"{name}: [{start}, {end}) is put back, and refused still")


def is_beyond_repair(stream: Stream, committed_end: Offset, images: Mapping[NodeId, LogImage]) -> bool:
    """Tell whether nobody has intact what the stream needs; ``images`` are the replicas that are there.

    Of what is not committed that is the leader's log, which it cannot cut; what others have of it may be cut.
    """
    for member in stream.isr_nodes:
        image = images.get(member)
        if image is None or not image.damage.flipped:
            continue
        for batch in damaged_batches(image):
            is_needed = batch.next <= committed_end or member == stream.leader
            if is_needed and not any(has_intact(other, batch) for other in images.values()):
                return True
    return False


def has_intact(image: LogImage, batch: Batch) -> bool:
    """Tell whether a log has the batch, durably and as it was written."""
    if batch.next > image.durable_end or image.damage.overlaps(batch.base, batch.next):
        return False
    return image.batches_from(batch.base, 1) == [batch]
