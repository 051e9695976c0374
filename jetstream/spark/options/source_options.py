"""Options of the source: parsed and checked before anything is asked; docs/spark.md lists them."""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

from envelope.errors import RequestError
from envelope.internal_streams import is_internal
from envelope.spark_errors import InvalidOption
from envelope.subjects import validated_pattern, validated_stream_name
from jetstream.client.nodes.replica_choice import ReadFrom
from jetstream.protocol.requests import NAME_CHARS_MAX
from jetstream.spark.options import option_names
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.option_names import check_names
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

MAX_DELAY_S_DEFAULT: Final = 15 * 60.0
FETCH_TIMEOUT_S_DEFAULT: Final = 120.0
FETCH_RETRIES_DEFAULT: Final = 3
FETCH_RETRY_INTERVAL_S_DEFAULT: Final = 1.0
"""What Kafka's source does; its documentation says 10 ms."""
RETRIES_MAX: Final = 1_000_000
PARTITIONS_MAX: Final = 100_000
"""Spark's partitions of one batch: more are a mistake, and more than a driver can plan."""

NoMatch = Literal["error", "latest"]
Value = TypeVar("Value")
Default = TypeVar("Default")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a query asks for, checked."""

    access: ClusterAccess
    streams: tuple[str, ...] | None = None
    """Names of streams; of a partitioned stream the whole, or single partitions."""
    pattern: str | None = None
    """Instead: a regular expression for whole names, also those of streams to come."""
    starting: StreamPlace
    ending: StreamPlace
    """Of a batch read."""
    no_match: NoMatch = "error"
    """What a starting moment means behind which there is no record."""
    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = MAX_DELAY_S_DEFAULT
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    subject: str | None = None
    key: str | None = None
    columns: tuple[str, ...] | None = None
    """Only these, in this order; `output_columns` says it in any case."""
    read_preference: ReadFrom = "auto"
    fetch_timeout_s: float = FETCH_TIMEOUT_S_DEFAULT
    fetch_retries: int = FETCH_RETRIES_DEFAULT
    fetch_retry_interval_s: float = FETCH_RETRY_INTERVAL_S_DEFAULT

    @property
    def patience_s(self) -> float:
        """How long a task goes on without a record that is known to be there."""
        return self.fetch_timeout_s + self.fetch_retries * (
            self.fetch_timeout_s + self.fetch_retry_interval_s
        )

    @property
    def output_columns(self) -> tuple[str, ...]:
        """Names of the columns that the source has, in order."""
        if self.columns is not None:
            return self.columns
        return (*COLUMNS, HEADERS) if self.include_headers else COLUMNS

    def wants(self, stream: str, whole: str | None = None) -> bool:
        """Tell whether the query reads the stream, which may be a partition of ``whole``."""
        names = (stream,) if whole is None else (stream, whole)
        if self.streams is not None:
            return any(name in self.streams for name in names)
        assert self.pattern is not None, "streams or a pattern"
        return not is_internal(stream) and any(re.fullmatch(self.pattern, name) for name in names)


def parse_source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Return what the options of a read say; see docs/spark.md.

    Raises:
        InvalidOption: one that does not exist, belongs elsewhere, has a value that cannot be, or contradicts
            another one.
    """
    known = option_names.STREAM_SOURCE if streaming else option_names.BATCH_SOURCE
    check_names(options, known, _elsewhere(streaming=streaming))
    access, rest = ClusterAccess.from_options(options)
    named = _Given(rest)
    streams, pattern = _streams(named)
    columns, include_headers = _columns(named)
    min_offsets, max_offsets, max_delay_s = _per_trigger(named)
    return SourceOptions(
        access=access,
        streams=streams,
        pattern=pattern,
        starting=_starting(named, streaming=streaming),
        ending=_ending(named),
        no_match=named.get("startingOffsetsByTimestampStrategy", _no_match, "error"),
        max_offsets=max_offsets,
        max_bytes=named.get("maxBytesPerTrigger", size_bytes, None),
        min_offsets=min_offsets,
        max_delay_s=max_delay_s,
        min_partitions=named.get("minPartitions", _partitions, None),
        max_records_per_partition=named.get("maxRecordsPerPartition", count, None),
        fail_on_data_loss=named.get("failOnDataLoss", flag, default=True),
        include_headers=include_headers,
        subject=named.get("subject", _subject, None),
        key=named.get("key", _key, None),
        columns=columns,
        read_preference=named.get("readPreference", _read_from, "auto"),
        fetch_timeout_s=named.get("fetchTimeoutMs", _timeout_s, FETCH_TIMEOUT_S_DEFAULT),
        fetch_retries=named.get("fetchRetries", _retries, FETCH_RETRIES_DEFAULT),
        fetch_retry_interval_s=named.get("fetchRetryIntervalMs", _interval_s, FETCH_RETRY_INTERVAL_S_DEFAULT),
    )


class _Given:
    """Options by their names in lower case, all of them known."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def has(self, option: str) -> bool:
        return option.lower() in self._values

    def get(self, option: str, parse: Callable[[str, str], Value], default: Default) -> Value | Default:
        text = self._values.get(option.lower())
        return default if text is None else parse(option, text)


def _elsewhere(*, streaming: bool) -> dict[str, Collection[str]]:
    other = {"a batch read": option_names.BATCH_ONLY} if streaming else {"a stream": option_names.STREAM_ONLY}
    return {**other, "the sink": option_names.SINK}


def _streams(given: _Given) -> tuple[tuple[str, ...] | None, str | None]:
    ways = [option for option in ("stream", "streams", "streamPattern") if given.has(option)]
    if len(ways) != 1:
        raise InvalidOption(f"one of stream, streams and streamPattern, not {' and '.join(ways) or 'none'}")
    streams = given.get("stream", _one_stream, None) or given.get("streams", _several_streams, None)
    return streams, given.get("streamPattern", _pattern, None)


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


def _starting(given: _Given, *, streaming: bool) -> StreamPlace:
    """Return where the query begins; as with Kafka a moment goes before an offset."""
    starting = given.get("startingTimestamp", place_at_moment, None)
    starting = starting or given.get("startingOffsetsByTimestamp", place_at_moments, None)
    default = StreamPlace("startingOffsets", everywhere=LATEST if streaming else EARLIEST)
    starting = starting or given.get("startingOffsets", place_at_offsets, default)
    if not streaming and _says(starting, LATEST):
        raise InvalidOption("startingOffsets: a batch read that starts at the latest offset reads nothing")
    return starting


def _ending(given: _Given) -> StreamPlace:
    ending = given.get("endingTimestamp", place_at_moment, None)
    ending = ending or given.get("endingOffsetsByTimestamp", place_at_moments, None)
    ending = ending or given.get(
        "endingOffsets", place_at_offsets, StreamPlace("endingOffsets", everywhere=LATEST)
    )
    if _says(ending, EARLIEST):
        raise InvalidOption("endingOffsets: a batch read that ends at the earliest offset reads nothing")
    return ending


def _says(place: StreamPlace, offset: int) -> bool:
    return not place.is_moment and offset in (place.everywhere, *place.streams.values())


def _per_trigger(given: _Given) -> tuple[int | None, int | None, float]:
    least, most = (
        given.get("minOffsetsPerTrigger", count, None),
        given.get("maxOffsetsPerTrigger", count, None),
    )
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}")
    if least is None and given.has("maxTriggerDelay"):
        raise InvalidOption("maxTriggerDelay: how long minOffsetsPerTrigger waits, and that is not set")
    return least, most, given.get("maxTriggerDelay", duration_s, MAX_DELAY_S_DEFAULT)


def _columns(given: _Given) -> tuple[tuple[str, ...] | None, bool]:
    """Return the columns that are wanted, and whether headers are among them."""
    include_headers = given.get("includeHeaders", flag, None)
    columns = given.get("columns", _column_names, None)
    if columns is None:
        return None, include_headers is True
    if include_headers is not None and include_headers != (HEADERS in columns):
        raise InvalidOption(f"includeHeaders and columns contradict each other: {', '.join(columns)}")
    return columns, HEADERS in columns


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


def _checked(option: str, validated: Callable[[str], str], text: str) -> str:
    try:
        return validated(text)
    except RequestError as error:
        raise InvalidOption(f"{option}: {error.description}") from None
