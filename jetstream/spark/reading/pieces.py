"""How the ranges of a batch are cut into pieces, one for each task of Spark; pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from envelope.spark_errors import InvalidOption
from jetstream.spark.options.source_options import PARTITIONS_MAX
from jetstream.spark.reading.planning import IncarnationRange, shared_out


def pieces_of(
    ranges: Iterable[IncarnationRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
    boundaries: Mapping[str, Sequence[int]] | None = None,
) -> list[IncarnationRange]:
    """Return the ranges, cut so that there are enough of them and none is too large; they tile the same.

    Without either limit each range is one piece. With ``min_partitions`` there are that many at least, as far
    as there are offsets, dealt out in proportion to the sizes of the ranges.

    Args:
        ranges: of different streams; empty ones are left out.
        min_partitions: how many pieces there are to be.
        max_records: how many offsets one may have.
        boundaries: offsets at which batches of the log begin, ascending, as far as they are known. A cut is
            rather made there, if the piece keeps half of its size: a batch that is cut is fetched twice.

    Raises:
        InvalidOption: that would be more than `PARTITIONS_MAX` pieces.
    """
    wanted = {each.stream: each for each in ranges if each.size > 0}
    sizes = {stream: each.size for stream, each in wanted.items()}
    counts = shared_out(max(min_partitions or 0, len(sizes)), sizes)
    if max_records is not None:
        counts = {stream: max(counts[stream], -(-size // max_records)) for stream, size in sizes.items()}
    if sum(counts.values()) > PARTITIONS_MAX:
        raise InvalidOption(
            f"maxRecordsPerPartition: {max_records} makes {sum(counts.values())} partitions of "
            f"{sum(sizes.values())} records, {PARTITIONS_MAX} can be: allow more, or read less at a time"
        )
    known = boundaries or {}
    return [
        piece
        for stream, each in wanted.items()
        for piece in _cut(each, counts[stream], max_records or each.size, known.get(stream, ()))
    ]


def _cut(
    whole: IncarnationRange, count: int, size_max: int, boundaries: Sequence[int]
) -> Iterator[IncarnationRange]:
    """Yield ``count`` pieces, or a few more where cuts that were moved have left too much for the last."""
    start = whole.start
    while start < whole.end:
        size = min(-(-(whole.end - start) // count), size_max)
        end = start + size
        if end < whole.end:
            below = bisect_right(boundaries, end) - 1
            if below >= 0 and boundaries[below] > start + size // 2:
                end = boundaries[below]
        yield whole._replace(start=start, end=end)
        start, count = end, max(count - 1, 1)
