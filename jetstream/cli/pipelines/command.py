"""``jetstream pipeline …``: jobs on Spark that are configured, not coded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_duration
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.pipelines.options import PipelineSource, QueryOptions, absolute_place, access_options
from jetstream.cli.pipelines.run import run_streaming
from jetstream.cli.program.help_text import Json
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.pipelines import aggregate as aggregate_pipeline
from jetstream.spark.pipelines import table as table_pipeline
from jetstream.spark.pipelines.aggregate import AggregateSettings, ParquetSink, StreamSink
from jetstream.spark.pipelines.settings import QuerySettings, stream_of
from jetstream.spark.pipelines.table import TableSettings
from jetstream.spark.pipelines.tables.table_version import Layout

TABLE_EXAMPLES: Final = (
    "jetstream pipeline table --stream prices --table /srv/prices --checkpoint /srv/prices-checkpoint",
    "jetstream pipeline table --config examples/pipelines/table.toml --once",
)
AGGREGATE_EXAMPLES: Final = (
    "jetstream pipeline aggregate --config examples/pipelines/aggregate.toml",
    "jetstream pipeline aggregate --config examples/pipelines/aggregate.toml --window '1 day'",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """The table to make, and its directory."""

    table: Annotated[
        Path,
        typer.Option("--table", metavar="DIR", help="Directory of the table; executors must see it too."),
    ]
    buckets: Annotated[
        int,
        typer.Option("--buckets", min=1, max=65_536, help="Files that it has; each must fit into memory."),
    ] = 16
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema", metavar="DDL", help="Fields of values that are JSON: 'price DOUBLE, at TIMESTAMP'."
        ),
    ] = None
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="DURATION", help="How long replaced files stay for their readers."),
    ] = "1h"

    def settings(self, query: QuerySettings) -> TableSettings:
        """Return them as the pipeline's settings.

        Raises:
            typer.BadParameter: no duration.
        """
        return TableSettings(
            directory=self.table.absolute(),
            layout=Layout(self.buckets, self.schema),
            grace=parse_duration(self.grace),
            query=query,
        )


def table(
    nats: NatsOptions,
    socket: SocketOptions,
    source: PipelineSource,
    table_options: TableOptions,
    query: QueryOptions,
    as_json: Json = False,
) -> None:
    """Keep a table of the last record of each key, as Parquet files that are replaced as a whole.

    A tombstone removes its key; records without a key are left out. The table goes with its checkpoint:
    started again with it, after whatever end, the pipeline goes on, and each record counts once.
    """
    options, settings = source.options(nats, socket), table_options.settings(query.query_settings())
    parse_source_options(options, streaming=True)
    settings.directory.mkdir(parents=True, exist_ok=True)
    run_streaming(
        query,
        lambda session: table_pipeline.start(stream_of(session, options), settings),
        as_json=as_json,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOptions:
    """The aggregates to compute of the values."""

    schema: Annotated[
        str, typer.Option("--schema", metavar="DDL", help="Fields of the values, which are JSON objects.")
    ]
    time: Annotated[str, typer.Option("--time", metavar="FIELD", help="The field that tells when.")]
    window: Annotated[
        str, typer.Option("--window", metavar="LENGTH", help="Length of a window, such as '1 hour'.")
    ]
    aggregates: Annotated[
        str, typer.Option("--aggregates", metavar="SQL", help="Such as 'count(*) AS n, avg(delay) AS mean'.")
    ]
    slide: Annotated[
        str | None,
        typer.Option(
            "--slide", metavar="LENGTH", help="From one window's start to the next; else its length."
        ),
    ] = None
    watermark: Annotated[
        str, typer.Option("--watermark", metavar="LENGTH", help="How late a record may be.")
    ] = "0 seconds"
    group_by: Annotated[
        str, typer.Option("--group-by", metavar="FIELDS", help="Fields to group by, with commas.")
    ] = ""

    def settings(self, query: QuerySettings) -> AggregateSettings:
        """Return them as the pipeline's settings."""
        return AggregateSettings(
            schema=self.schema,
            time=self.time,
            window=self.window,
            slide=self.slide,
            watermark=self.watermark,
            group_by=tuple(name.strip() for name in self.group_by.split(",") if name.strip()),
            aggregates=self.aggregates,
            query=query,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """Where windows go."""

    to_subject: Annotated[
        str | None,
        typer.Option("--to-subject", metavar="SUBJECT", help="Publish each window as JSON on this subject."),
    ] = None
    to_stream: Annotated[
        str | None,
        typer.Option("--to-stream", metavar="NAME", help="The stream that stores it, if several do."),
    ] = None
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Write windows as Parquet files here.")
    ] = None

    def sink(self, access: dict[str, str], checkpoint: str) -> StreamSink | ParquetSink:
        """Return the pipeline's sink.

        Windows come in any order when a micro-batch is run again, so they are staged beside the checkpoint
        and published from there.

        Raises:
            typer.BadParameter: no place, or two.
        """
        if (self.to_subject is None) == (self.parquet is None):
            raise typer.BadParameter("where to? one of --to-subject and --parquet")
        if self.parquet is not None:
            if self.to_stream is not None:
                raise typer.BadParameter("--to-stream goes with --to-subject")
            return ParquetSink(str(self.parquet.absolute()))
        stream = {} if self.to_stream is None else {"stream": self.to_stream}
        staging = absolute_place(checkpoint).rstrip("/") + "-staging"
        return StreamSink({**access, **stream, "subject": self.to_subject or "", "staging": staging})


def aggregate(
    nats: NatsOptions,
    socket: SocketOptions,
    source: PipelineSource,
    question: QuestionOptions,
    answer: AnswerOptions,
    query: QueryOptions,
    as_json: Json = False,
) -> None:
    """Aggregate values that are JSON in windows of the time that they tell.

    A window comes out once, when the watermark has passed its end: the latest time seen, less --watermark.
    Records behind it are in no window; every line says how many. As records, windows have a key of groups and
    start, and are objects with window_start, window_end, the groups and the aggregates.
    """
    options, settings = source.options(nats, socket), question.settings(query.query_settings())
    sink = answer.sink(access_options(nats, socket), query.checkpoint)
    parse_source_options(options, streaming=True)
    run_streaming(
        query,
        lambda session: aggregate_pipeline.start(stream_of(session, options), settings, sink),
        as_json=as_json,
    )
