"""The progress of a query, out of Spark's events of its micro-batches; pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envelope.errors import RequestError
from jetstream.spark.reading.offsets import Offsets, StreamOffset, decode_offsets


@dataclass(frozen=True, slots=True)
class BatchProgress:
    """The progress of a micro-batch that is done.

    Attributes:
        batch: its number in the query.
        rows: that it read.
        rows_per_second: while it ran; 0 if that was too short to measure.
        seconds: that it took.
        lag: offsets between its end and the high watermark at its end; None: the source does not report it.
        late: rows that were behind the watermark, and so are in no window.
    """

    batch: int
    rows: int
    rows_per_second: float
    seconds: float
    lag: int | None
    late: int = 0


def progress_of(event: Mapping[str, Any]) -> BatchProgress:
    """Return the progress in a ``StreamingQueryProgress``."""
    rows, seconds = event["numInputRows"], event["batchDuration"] / 1000
    return BatchProgress(
        batch=event["batchId"],
        rows=rows,
        rows_per_second=round(rows / seconds, 1) if seconds else 0.0,
        seconds=seconds,
        lag=_lag(event["sources"]),
        late=sum(operator["numRowsDroppedByWatermark"] for operator in event["stateOperators"]),
    )


def _lag(sources: Sequence[Mapping[str, Any]]) -> int | None:
    lags = [_lag_of(_offsets(source["endOffset"]), _offsets(source["latestOffset"])) for source in sources]
    known = [lag for lag in lags if lag is not None]
    return sum(known) if known else None


def _lag_of(end: Offsets | None, latest: Offsets | None) -> int | None:
    if end is None or latest is None:
        return None
    return sum(_behind(end.get(stream), place) for stream, place in latest.items())


def _behind(end: StreamOffset | None, latest: StreamOffset) -> int:
    """Return how far; of a stream that the query has not come to, and of another life of it, from 0 on."""
    if end is None or end.incarnation != latest.incarnation:
        return latest.offset
    return max(latest.offset - end.offset, 0)


def _offsets(text: str | None) -> Offsets | None:
    """Return the offsets that a source has reported; None if it is not ours, or has reported none."""
    try:
        told = json.loads(text) if text else None
        return decode_offsets(told) if isinstance(told, dict) else None
    except (ValueError, RequestError):
        return None
