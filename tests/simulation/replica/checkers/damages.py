"""What is damaged is found, not served; and put back only as it was, and where it is committed.

Who asks for it knows that it is committed, and so does who answers. It is whole again once nothing goes wrong
any more, if anybody who is there has it intact.
"""

from collections.abc import Mapping, Sequence

from envelope.types import NodeId, Offset
from metadata.catalog.tables import Stream
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.reading import damaged_batches
from tests.simulation.violation import Violation


def check_served(name: str, image: LogImage, start: int, end: int) -> None:
    """Check what leaves a replica, for whomever."""
    if start < end and image.damage.overlaps(start, end):
        raise Violation(f"{name}: [{start}, {end}) is served, and is damaged")


def check_asked(name: str, end: Offset, high_watermark: Offset) -> None:
    """Check what a replica asks others for."""
    if end > high_watermark:
        raise Violation(f"{name}: asks for what lies below {end}; {high_watermark} is committed here")


def check_answered(name: str, image: LogImage, batches: Sequence[Batch], high_watermark: Offset) -> None:
    """Check what a replica gives to who has damage."""
    if not batches:
        return
    check_served(name, image, batches[0].base, batches[-1].next)
    if batches[-1].next > high_watermark:
        raise Violation(f"{name}: answers up to {batches[-1].next}; {high_watermark} is committed here")


def check_filled(name: str, image: LogImage, batches: Sequence[Batch], truths: Truths) -> None:
    """Check what is put back into a log, which remembers what was there."""
    for batch in batches:
        was_there = image.batches_from(batch.base, 1)
        if was_there != [batch]:
            raise Violation(f"{name}: {batch} is put where {was_there} was")
        for row, value in enumerate(batch.values):
            if not truths.was_committed(Offset(batch.base + row), value):
                raise Violation(f"{name}: {batch} is put back, and was never committed")


def check_repaired(name: str, image: LogImage, start: Offset, end: Offset) -> None:
    """Check a log in which a hole was filled."""
    if any(low < end and start < high for low, high in image.damage.refused):
        raise Violation(f"{name}: [{start}, {end}) is put back, and refused still")


def is_beyond_repair(stream: Stream, committed_end: Offset, images: Mapping[NodeId, LogImage]) -> bool:
    """Tell whether nobody has intact what the stream needs; ``images`` are the replicas that are there.

    What is not committed is not repaired: who leads can neither give what is damaged nor cut it.
    """
    for member in stream.isr_nodes:
        image = images.get(member)
        if image is None or not image.damage.flipped:
            continue
        for batch in damaged_batches(image):
            if batch.next > committed_end:
                if member == stream.leader:
                    return True
            elif not any(has_intact(other, batch) for other in images.values()):
                return True
    return False


def has_intact(image: LogImage, batch: Batch) -> bool:
    """Tell whether a log has the batch, durably and as it was written."""
    if batch.next > image.durable_end or image.damage.overlaps(batch.base, batch.next):
        return False
    return image.batches_from(batch.base, 1) == [batch]
