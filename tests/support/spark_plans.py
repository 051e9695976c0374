"""Options, bounds, checkpoints and ranges of Spark queries, in a line each."""

from collections.abc import Mapping

from jetstream.spark.options.source_options import SourceOptions, parse_source_options
from jetstream.spark.reading.offsets import Offsets, StreamOffset
from jetstream.spark.reading.planning import IncarnationRange, StreamBounds

ACCEPT = "; set failOnDataLoss to false to go on with what is there"
GONE = "orders: the checkpoint is at 5, and it is deleted, or not among the streams that the options name"
RECREATED = (
    "orders: the checkpoint is at 5, and it was deleted and created again: "
    "that was orders-1, now it is orders-2"
)
REMOVED = "orders: records 5 to 29 are not there any more: retention has removed them"


def options(given: Mapping[str, str] | None = None, *, streaming: bool = True) -> SourceOptions:
    known = {"servers": "nats://one:4222", "streamPattern": ".*"}
    return parse_source_options({**known, **(given or {})}, streaming=streaming)


def bounds(**streams: tuple[int, int]) -> dict[str, StreamBounds]:
    """Of the first life of each stream."""
    return {stream: StreamBounds(f"{stream}-1", *between) for stream, between in streams.items()}


def recreated(now: dict[str, StreamBounds], stream: str) -> dict[str, StreamBounds]:
    return now | {stream: now[stream]._replace(incarnation=f"{stream}-2")}


def at(**streams: int) -> Offsets:
    return {stream: StreamOffset(f"{stream}-1", offset) for stream, offset in streams.items()}


def begun(stream: str, start: int, end: int) -> Offsets:
    """The end of a batch that begins at ``start``, whatever was before."""
    return {stream: StreamOffset(f"{stream}-1", end, start)}


def span(stream: str, start: int, end: int) -> IncarnationRange:
    return IncarnationRange(stream, f"{stream}-1", start, end)
