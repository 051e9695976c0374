"""How the bytes of a log are read: what is damaged is found, and refused."""

from envelope.errors import CorruptDataError
from envelope.types import Offset
from tests.simulation.replica.log_image import Batch, LogImage


def readable(image: LogImage, offset: Offset, batches_max: int | None = None) -> list[Batch]:
    """Return the batches from ``offset`` on, up to what is known to be damaged.

    Raises:
        CorruptDataError: ``offset`` is refused, or a batch that was not read before is damaged.
    """
    batches, damage = image.batches_from(offset, batches_max), image.damage
    if damage.is_none or not batches:
        return batches
    damage.refuse(offset)
    stop = min((start for start, _ in damage.refused if start > offset), default=image.log_end)
    taken = [batch for batch in batches if batch.next <= stop]
    for batch in taken:
        damage.read(batch)
        damage.refuse(batch.base)
    return taken


def readable_end(image: LogImage, start: Offset, end: Offset) -> Offset:
    """Return up to where a reader who begins at ``start`` gets everything below ``end``."""
    if image.damage.is_none:
        return end
    for batch in image.batches_from(image.origin):
        if batch.next <= start or batch.base >= end:
            continue
        image.damage.read(batch)
        try:
            image.damage.refuse(max(batch.base, start))
        except CorruptDataError:
            return max(start, batch.base)
    return end


def damaged_batches(image: LogImage) -> list[Batch]:
    """Return what is damaged, found or not."""
    flipped = image.damage.flipped
    return [batch for batch in image.batches_from(image.origin) if batch.base in flipped] if flipped else []
