"""Options of the source: parsed and checked before anything is asked; docs/spark.md lists them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from envelope.errors import RequestError
from envelope.internal_streams import is_internal
from envelope.spark_errors import InvalidOption
from envelope.subjects import validated_pattern, validated_stream_name
from jetstream.client.nodes.replica_choice import ReadFrom
from jetstream.protocol.requests import NAME_CHARS_MAX
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.option_names import Scope, check_names, names_of, option, parsed
from jetstream.spark.options.option_values import (
    count,
    duration_s,
    flag,
    milliseconds,
    one_of,
    size_bytes,
    words_of,
)
from jetstream.spark.options.places import (
    EARLIEST,
    LATEST,
    StreamPlace,
    place_at_moment,
    place_at_moments,
    place_at_offsets,
)
from jetstream.spark.options.sink_options import SinkOptions

COLUMNS: Final = (
    "key",
    "value",
    "stream",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "subject",
    "txid",
)
"""Of the source, in their order."""
HEADERS: Final = "headers"
"""The column behind them, on request."""

RETRIES_MAX: Final = 1_000_000
PARTITIONS_MAX: Final = 100_000
"""Spark's partitions of one batch: more are a mistake, and more than a driver can plan."""

NoMatch = Literal["error", "latest"]
_SCOPES: Final[Mapping[bool, Scope]] = {False: "batch", True: "stream"}


def _checked(option: str, validated: Callable[[str], str], text: str) -> str:
    try:
        return validated(text)
    except RequestError as error:
        raise InvalidOption(f"{option}: {error.description}") from None


def _one_stream(option: str, text: str) -> tuple[str, ...]:
    if "," in text:
        raise InvalidOption(f"stream: {text!r}: one name; several are an option of their own, streams")
    return _several_streams(option, text)


def _several_streams(option: str, text: str) -> tuple[str, ...]:
    return tuple(_checked(option, validated_stream_name, name) for name in words_of(option, text))


def _pattern(option: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidOption(f"{option}: {text!r}: no regular expression: {error}") from None
    if not text:
        raise InvalidOption(f"{option} is empty")
    return text


def _column_names(option: str, text: str) -> tuple[str, ...]:
    return words_of(
        option, ",".join(one_of(option, name, (*COLUMNS, HEADERS)) for name in words_of(option, text))
    )


def _no_match(option: str, text: str) -> NoMatch:
    return "latest" if one_of(option, text, get_args(NoMatch)) == "latest" else "error"


def _read_from(option: str, text: str) -> ReadFrom:
    if text.strip().lower() in ("follower", "nearest"):
        raise InvalidOption(f"{option}: {text!r}: here it is called any")
    word: ReadFrom = one_of(option, text, get_args(ReadFrom))
    return word


def _partitions(option: str, text: str) -> int:
    return count(option, text, most=PARTITIONS_MAX)


def _subject(option: str, text: str) -> str:
    return _checked(option, validated_pattern, text.strip())


def _key(option: str, text: str) -> str:
    if len(text) > NAME_CHARS_MAX:
        raise InvalidOption(f"{option}: {len(text)} characters, a fetch carries {NAME_CHARS_MAX}")
    return text


def _timeout_s(option: str, text: str) -> float:
    return milliseconds(option, text, least=1)


def _retries(option: str, text: str) -> int:
    return count(option, text, least=0, most=RETRIES_MAX)


def _interval_s(option: str, text: str) -> float:
    return milliseconds(option, text, least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of the source, checked."""

    access: ClusterAccess
    executor_nats: bool = option({"executorNats": flag}, default=True)
    """Executors connect to NATS themselves; False: tasks have what the driver gives them."""
    streams: tuple[str, ...] | None = option({"stream": _one_stream, "streams": _several_streams}, None)
    """Names of streams; of a partitioned stream the whole, or single partitions."""
    pattern: str | None = option({"streamPattern": _pattern}, None)
    """Instead: a regular expression for whole names, also those of streams to come."""
    starting: StreamPlace = option(
        {
            "startingTimestamp": place_at_moment,
            "startingOffsetsByTimestamp": place_at_moments,
            "startingOffsets": place_at_offsets,
        },
        StreamPlace("startingOffsets", everywhere=LATEST),
    )
    """As with Kafka a moment goes before an offset. The default is that of a stream."""
    ending: StreamPlace = option(
        {
            "endingTimestamp": place_at_moment,
            "endingOffsetsByTimestamp": place_at_moments,
            "endingOffsets": place_at_offsets,
        },
        StreamPlace("endingOffsets", everywhere=LATEST),
        "batch",
    )
    no_match: NoMatch = option({"startingOffsetsByTimestampStrategy": _no_match}, "error")
    """The meaning of a starting moment without a record behind it."""
    max_offsets: int | None = option({"maxOffsetsPerTrigger": count}, None, "stream")
    max_bytes: int | None = option({"maxBytesPerTrigger": size_bytes}, None, "stream")
    min_offsets: int | None = option({"minOffsetsPerTrigger": count}, None, "stream")
    max_delay_s: float = option({"maxTriggerDelay": duration_s}, 15 * 60.0, "stream")
    min_partitions: int | None = option({"minPartitions": _partitions}, None)
    max_records_per_partition: int | None = option({"maxRecordsPerPartition": count}, None)
    fail_on_data_loss: bool = option({"failOnDataLoss": flag}, default=True)
    include_headers: bool = option({"includeHeaders": flag}, default=False)
    subject: str | None = option({"subject": _subject}, None)
    key: str | None = option({"key": _key}, None)
    columns: tuple[str, ...] | None = option({"columns": _column_names}, None)
    """Only these, in this order; `output_columns` says it in any case."""
    read_preference: ReadFrom = option({"readPreference": _read_from}, "auto")
    fetch_timeout_s: float = option({"fetchTimeoutMs": _timeout_s}, 120.0)
    fetch_retries: int = option({"fetchRetries": _retries}, 3)
    fetch_retry_interval_s: float = option({"fetchRetryIntervalMs": _interval_s}, 1.0)
    """The default of Kafka's source; its documentation says 10 ms."""

    @property
    def patience_s(self) -> float:
        """How long a task goes on without a record that is known to be there."""
        return self.fetch_timeout_s + self.fetch_retries * (
            self.fetch_timeout_s + self.fetch_retry_interval_s
        )

    def for_tasks(self) -> "SourceOptions":
        """Return what goes to the executors."""
        return self if self.executor_nats else replace(self, access=self.access.without_nats())

    @property
    def output_columns(self) -> tuple[str, ...]:
        """Names of the columns that the source has, in order."""
        if self.columns is not None:
            return self.columns
        return (*COLUMNS, HEADERS) if self.include_headers else COLUMNS

    def wants(self, stream: str, whole: str | None = None) -> bool:
        """Return whether the query reads the stream, which may be a partition of ``whole``."""
        names = (stream,) if whole is None else (stream, whole)
        if self.streams is not None:
            return any(name in self.streams for name in names)
        assert self.pattern is not None, "streams or a pattern"
        return not is_internal(stream) and any(re.fullmatch(self.pattern, name) for name in names)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return the checked options of a read; see docs/spark.md.

    Raises:
        InvalidOption: one that does not exist, belongs elsewhere, has an invalid value, or contradicts
            another one.
    """
    mine, other = _SCOPES[streaming], _SCOPES[not streaming]
    elsewhere = {
        "a batch read" if streaming else "a stream": names_of(SourceOptions, other),
        "the sink": names_of(SinkOptions),
    }
    known = (*ClusterAccess.option_names(), *names_of(SourceOptions, "both", mine))
    check_names(options, known, elsewhere)
    access, texts = ClusterAccess.from_options(options)
    ways = [name for name in ("stream", "streams", "streamPattern") if name.lower() in texts]
    if len(ways) != 1:
        raise InvalidOption(f"one of stream, streams and streamPattern, not {' and '.join(ways) or 'none'}")
    values = parsed(SourceOptions, texts)
    if not streaming:
        values.setdefault("starting", StreamPlace("startingOffsets", everywhere=EARLIEST))
    if (columns := values.get("columns")) is not None:
        has_headers = HEADERS in columns
        if values.setdefault("include_headers", has_headers) != has_headers:
            raise InvalidOption(f"includeHeaders and columns contradict each other: {', '.join(columns)}")
    source = SourceOptions(access=access, **values)
    _check_limits(source, texts)
    if not streaming and _is_at(source.starting, LATEST):
        raise InvalidOption("startingOffsets: a batch read that starts at the latest offset reads nothing")
    if _is_at(source.ending, EARLIEST):
        raise InvalidOption("endingOffsets: a batch read that ends at the earliest offset reads nothing")
    return source


def _check_limits(source: SourceOptions, texts: Mapping[str, str]) -> None:
    least, most = source.min_offsets, source.max_offsets
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    if least is None and "maxtriggerdelay" in texts:
        raise InvalidOption("maxTriggerDelay: how long minOffsetsPerTrigger waits, and that is not set")


def _is_at(place: StreamPlace, offset: int) -> bool:
    return not place.is_moment and offset in (place.everywhere, *place.streams.values())
