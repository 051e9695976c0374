"""Pipeline *aggregate*: values that are JSON, in windows of the time in them, grouped and aggregated.

A window comes out once, when the watermark has passed its end: the latest time seen so far, less the allowed
delay. A later record is in no window, and is counted (`BatchProgress.late`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from envelope.errors import RequestError
from jetstream.spark.pipelines.json_values import name_literal, parsed, text_literal
from jetstream.spark.pipelines.settings import FORMAT, QuerySettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_EVENTS: Final = "jetstream_events"
"""Name of the view that the aggregates are asked of."""

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSettings:
    """The aggregates to compute of the values, and their windows.

    Attributes:
        schema: of the values, in Spark's DDL.
        time: the field that has the time of a value; a timestamp.
        window: length of a window: ``1 hour``.
        slide: from the start of one window to the next; None: the length, so that each time is in one.
        watermark: how late a record may be, behind the latest one seen.
        group_by: fields of the values.
        aggregates: SQL, with names: ``count(*) as departures, avg(dep_delay) as mean_delay``.
    """

    schema: str
    time: str
    window: str
    slide: str | None = None
    watermark: str
    group_by: tuple[str, ...] = ()
    aggregates: str
    query: QuerySettings


@dataclass(frozen=True, slots=True)
class StreamSink:
    """Where windows go: records of a stream, by the options of our sink. Key and value are JSON."""

    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Where windows go: rows of Parquet files in a directory, as Spark's own sink writes them."""

    directory: str


def start(
    records: "DataFrame", settings: AggregateSettings, sink: StreamSink | ParquetSink
) -> "StreamingQuery":
    """Start the pipeline.

    Args:
        records: a streaming frame with the columns of our source.
        settings: the aggregates.
        sink: for the windows.
    """
    return settings.query.started(_writer(windows_of(records, settings), settings, sink).outputMode("append"))


def windows_of(records: "DataFrame", settings: AggregateSettings) -> "DataFrame":
    """Return a row for each window and group: `WINDOW_START`, `WINDOW_END`, the groups, the aggregates.

    Raises:
        RequestError: two of them have one name.
    """
    events = records.where("value IS NOT NULL").selectExpr(f"{parsed(settings.schema)} AS value")
    timed = events.selectExpr("value.*").withWatermark(settings.time, settings.watermark)
    timed.createOrReplaceTempView(_EVENTS)
    windows = records.sparkSession.sql(_question(settings)).selectExpr(
        f"window.start AS {WINDOW_START}", f"window.end AS {WINDOW_END}", "* EXCEPT (window)"
    )
    names = [name.lower() for name in windows.columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestError(f"two columns are called {', '.join(twice)}: give the aggregates other names")
    return windows


def _question(settings: AggregateSettings) -> str:
    lengths = (settings.window, settings.slide) if settings.slide is not None else (settings.window,)
    window = f"window({', '.join((name_literal(settings.time), *map(text_literal, lengths)))})"
    groups = [name_literal(name) for name in settings.group_by]
    asked = ", ".join((f"{window} AS window", *groups, settings.aggregates))
    return f"SELECT {asked} FROM {_EVENTS} GROUP BY {', '.join((window, *groups))}"  # noqa: S608 - a query of the user's own


def _writer(
    windows: "DataFrame", settings: AggregateSettings, sink: StreamSink | ParquetSink
) -> "DataStreamWriter":
    if isinstance(sink, ParquetSink):
        return windows.writeStream.format("parquet").option("path", sink.directory)
    value = "to_json(struct(*), map('ignoreNullFields', 'false'))"
    records = windows.selectExpr(f"{key_text(settings.group_by)} AS key", f"{value} AS value")
    return records.writeStream.format(FORMAT).options(**sink.options)


def key_text(group_by: tuple[str, ...]) -> str:
    """Return the SQL of a record's key: groups and the window's start, ``JFK/2013-01-01T10:00:00Z``.

    No two windows have one key: in a group ``%`` is ``%25``, ``/`` is ``%2F``, and null is ``%``.
    """
    groups = [
        f"coalesce(replace(replace(CAST({name_literal(name)} AS STRING), '%', '%25'), '/', '%2F'), '%')"
        for name in group_by
    ]
    start_text = f"date_format({WINDOW_START}, \"yyyy-MM-dd'T'HH:mm:ssXXX\")"
    return f"concat_ws('/', {', '.join((*groups, start_text))})"
