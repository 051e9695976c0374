"""Two batches of one base and epoch are the same batch, and so is everything before them."""

from envelope.types import LeaderEpoch, Offset, StreamName
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.violation import Violation


class LogMatching:
    """Remembers every batch that was ever written, with the epoch of the record before it.

    That the batches before are equal too follows, one step at a time.
    """

    def __init__(self) -> None:
        self._batches: dict[tuple[StreamName, Offset, LeaderEpoch], tuple[tuple[str, ...], LeaderEpoch]] = {}

    def written(self, image: LogImage, batch: Batch) -> None:
        """A batch is about to be written at the end of ``image``."""
        before = image.records(batch.base - 1, batch.base)
        if not before and batch.base > 0:
            return  # what came before was removed
        found = (batch.values, before[0][0] if before else LeaderEpoch(0))
        known = self._batches.setdefault((image.stream, batch.base, batch.epoch), found)
        if known != found:
            raise Violation(
                f"batch {batch.base} of epoch {batch.epoch} of {image.stream} is {found} here, "
                f"{known} elsewhere (values, epoch of the record before)"
            )
