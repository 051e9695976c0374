"""What a log lacks inside, and what fits there, as the product says."""

from collections.abc import Iterator, Sequence

from envelope.errors import JetstreamError
from envelope.types import FilePosition, Offset, TimestampUs
from jetstream.log.format.batch import FORMAT_VERSION, BatchFlags, BatchHeader, SealedBatch
from jetstream.log.rewriting.repair import Hole, check_fits, holes
from jetstream.log.segments.index import BatchIndex, IndexEntry
from jetstream.log.segments.scan import FIRST_BATCH
from jetstream.log.segments.segment import PlanAgain
from tests.simulation.replica.log_image import Batch, LogImage

_UNTIMED = TimestampUs(0)


def holes_of(image: LogImage) -> Iterator[Hole]:
    """Yield what of a log is known to be damaged."""
    refused = image.damage.refused
    if refused:
        segment = image.damage.segment_at(image.origin)
        index, segment.data_end = _index_of(image)
        for damaged in refused:
            yield from holes(segment, image.log_end, index, damaged)


def misfit(image: LogImage, hole: Hole, batches: Sequence[Batch]) -> JetstreamError | None:
    """Return why batches cannot be put into a hole, as `jetstream.log.log.Log.fill`; None if they can."""
    try:
        if hole not in holes_of(image):
            raise PlanAgain(f"[{hole.base}, {hole.next}) is not damaged as it was")
        sealed = [_sealed(batch, image.origin) for batch in batches]
        check_fits(hole, _index_of(image)[0], image.epochs, sealed)
    except JetstreamError as error:
        return error
    return None


def _index_of(image: LogImage) -> tuple[BatchIndex, FilePosition]:
    """Return the index that a process has of a log, and where its data ends."""
    index, position = BatchIndex(), int(FIRST_BATCH)
    for batch in image.batches_from(image.origin):
        header, frame = _sealed(batch, image.origin)
        if batch.base not in image.damage.missing:
            index.append(IndexEntry.of(header, position, len(frame), None), verified=False)
        position += len(frame)
    return index, FilePosition(position)


def _sealed(batch: Batch, first: Offset) -> SealedBatch:
    """Return a batch as it lies in a file; the one at ``first`` begins it."""
    flags = BatchFlags.ROLL if batch.base == first else BatchFlags(0)
    header = BatchHeader(
        version=FORMAT_VERSION,
        flags=flags,
        base=batch.base,
        next=batch.next,
        leader_epoch=batch.epoch,
        max_timestamp=_UNTIMED,
        crc=0,
    )
    return header, memoryview("".join(batch.values).encode())
