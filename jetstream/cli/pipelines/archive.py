"""``jetstream pipeline archive | merge | backfill | replay``: jobs around an archive of Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, get_args

import typer

from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_duration, parse_size
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.output.console import print_result
from jetstream.cli.pipelines.options import (
    RUN_PANEL,
    PipelineSource,
    QueryOptions,
    SparkOptions,
    access_options,
    config_from_file,
    pairs_of,
)
from jetstream.cli.pipelines.run import Total, run_batch, run_streaming
from jetstream.cli.program.help_text import Json
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.pipelines import archive as archive_pipeline
from jetstream.spark.pipelines import backfill as backfill_pipeline
from jetstream.spark.pipelines import replay as replay_pipeline
from jetstream.spark.pipelines.archive import ArchiveSettings
from jetstream.spark.pipelines.archives.archive_levels import LEVELS_DEFAULT, checked_levels
from jetstream.spark.pipelines.archives.archive_merges import final_merges
from jetstream.spark.pipelines.archives.archive_store import ArchiveStore, held_archive
from jetstream.spark.pipelines.archives.archive_writing import (
    COMPRESSION_DEFAULT,
    FileSettings,
    merge_small_files,
)
from jetstream.spark.pipelines.archives.parquet_files import Compression
from jetstream.spark.pipelines.replay import OWN_SUBJECT, ReplaySettings
from jetstream.spark.pipelines.settings import stream_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE_EXAMPLES: Final = (
    "jetstream pipeline archive --stream orders --archive /srv/orders",
    "jetstream pipeline archive --stream orders --archive /srv/orders --partition-by date,subject:2 --once",
)
MERGE_EXAMPLES: Final = ("jetstream pipeline merge --archive /srv/orders --file-size 256MiB",)
BACKFILL_EXAMPLES: Final = (
    "jetstream pipeline backfill --archive /srv/orders --parquet /tmp/all-orders",
    "jetstream pipeline backfill --archive /srv/orders --count",
)
REPLAY_EXAMPLES: Final = (
    "jetstream pipeline replay --archive /srv/orders --session again-1 --subject 'again.{subject}'",
)

ArchiveDirectory = Annotated[
    Path, typer.Option("--archive", metavar="DIR", help="The archive's directory; executors must see it too.")
]


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        is_eager=True,
        callback=config_from_file,
        help="TOML with these options by their names; the command line wins.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How an archive's files are to be."""

    file_size: Annotated[
        str, typer.Option("--file-size", metavar="SIZE", help="Smaller files are merged up to about this.")
    ] = "128MiB"
    compression: Annotated[
        str, typer.Option("--compression", metavar="NAME", help="Parquet's: zstd, snappy, gzip, lz4 or none.")
    ] = COMPRESSION_DEFAULT

    def settings(self) -> FileSettings:
        """Return them as the pipeline's settings.

        Raises:
            typer.BadParameter: no size, or no compression.
        """
        for name in get_args(Compression):
            if self.compression == name:
                return FileSettings(parse_size(self.file_size), name)
        raise typer.BadParameter(f"--compression {self.compression}: {', '.join(get_args(Compression))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    """Where the archive is, and how its directories are."""

    archive: ArchiveDirectory
    partition_by: Annotated[
        str,
        typer.Option(
            "--partition-by",
            metavar="LEVELS",
            help="Directories: date, then hour, subject:2 (its 2nd token).",
        ),
    ] = ",".join(LEVELS_DEFAULT)
    once: Annotated[
        bool,
        typer.Option(
            "--once/--continuous",
            rich_help_panel=RUN_PANEL,
            help="End with what is committed now, or go on until stopped.",
        ),
    ] = False
    every: Annotated[
        str,
        typer.Option(
            "--every",
            metavar="DURATION",
            rich_help_panel=RUN_PANEL,
            help="From one micro-batch to the next; 0: at once.",
        ),
    ] = "1m"

    def query(self, spark: SparkOptions) -> QueryOptions:
        """Return how the query runs: its checkpoint is part of the archive."""
        shared = {part.name: getattr(spark, part.name) for part in fields(SparkOptions)}
        return QueryOptions(**shared, checkpoint="", once=self.once, every=self.every)

    def settings(self, files: FileSettings) -> ArchiveSettings:
        """Return them as the pipeline's settings.

        Raises:
            InvalidConfig: levels of directories that cannot be.
            typer.BadParameter: no duration.
        """
        levels = checked_levels([word.strip() for word in self.partition_by.split(",")])
        root, every_s = self.archive.absolute(), parse_duration(self.every).total_seconds()
        return ArchiveSettings(root=root, levels=levels, files=files, once=self.once, every_s=every_s)


def archive(
    nats: NatsOptions,
    socket: SocketOptions,
    source: PipelineSource,
    archive_options: ArchiveOptions,
    files: FileOptions,
    spark: SparkOptions,
    as_json: Json = False,
) -> None:
    """Archive a stream as Parquet files in directories by date, each record exactly once.

    Stopped or killed and started again, it goes on where the archive ends, even if the query's checkpoint in
    it is lost. Small files are merged on the way. Any reader of Parquet reads the directory; while it is
    written to, `_archive/manifest.json` names the files that have each record once.
    """
    options = source.options(nats, socket)
    settings = archive_options.settings(files.settings())
    parse_source_options(options, streaming=True)
    with _held(settings.root) as store:
        told = archive_pipeline.source_options(options, store.manifest, settings.checkpoint)
        run_streaming(
            archive_options.query(spark),
            lambda session: archive_pipeline.start(stream_of(session, told), store, settings),
            as_json=as_json,
        )


def merge(
    archive: ArchiveDirectory, files: FileOptions, config: ConfigFile = None, as_json: Json = False
) -> None:
    """Merge the small files of an archive as far as that goes, while nobody writes to it; needs no Spark.

    Readers of the manifest see each record once all the time. Readers of the directories may see records of a
    merged file twice, or miss a file that is being read, while the merge is on its way.
    """
    with _held(_existing(archive)) as store:
        before = len(store.manifest.files)
        while merge_small_files(store, final_merges, files.settings()):
            pass
        after = len(store.manifest.files)
    print_result({"files_before": before, "files": after}, f"merged {before:,} files into {after:,}", as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillOptions:
    """Where the rows go."""

    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="DIR", help="Write them to this new directory.")
    ] = None
    count: Annotated[bool, typer.Option("--count", help="Only read and count them.")] = False
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="Option of the Spark source; repeatable."),
    ] = None


def backfill(
    nats: NatsOptions,
    socket: SocketOptions,
    archive: ArchiveDirectory,
    backfill_options: BackfillOptions,
    spark: SparkOptions,
    as_json: Json = False,
) -> None:
    """Join an archive and what its streams have got since, without gap or overlap.

    Below the archive's border rows are the archive's, from the border on the streams' own, up to what is
    committed when it starts. Retention may have removed from the streams what is archived, and nothing else.
    """
    if backfill_options.count == (backfill_options.parquet is not None):
        raise typer.BadParameter("where to? one of --parquet and --count")
    options = {**access_options(nats, socket), **pairs_of("--option", backfill_options.option)}
    rows = 0

    def job(session: "SparkSession") -> None:
        nonlocal rows
        target = None if backfill_options.parquet is None else backfill_options.parquet.absolute()
        rows = backfill_pipeline.run(session, archive.absolute(), options, target)

    backfill_pipeline.manifest_of(archive)
    run_batch(spark, job, as_json=as_json)
    print_result({"rows": rows}, f"{rows:,} rows", as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """The rows of an archive that are published again, and the subjects."""

    session: Annotated[
        str, typer.Option("--session", metavar="NAME", help="Of this replay: run again with it, it goes on.")
    ]
    subject: Annotated[
        str, typer.Option("--subject", metavar="SUBJECT", help="With {subject} for the record's own.")
    ] = OWN_SUBJECT
    to_stream: Annotated[
        str | None, typer.Option("--to-stream", metavar="NAME", help="The stream that stores them.")
    ] = None


def replay(
    nats: NatsOptions,
    socket: SocketOptions,
    archive: ArchiveDirectory,
    replay_options: ReplayOptions,
    spark: SparkOptions,
    as_json: Json = False,
) -> None:
    """Publish an archive's records again, once each, in the order of their offsets within each stream.

    Key, value, headers and txid are as they were. Stopped or killed and run again with the same session it
    goes on and publishes nothing twice; when it is complete, it goes on with what the archive has got since.
    """
    settings = ReplaySettings(
        root=archive.absolute(),
        session=replay_options.session,
        subject=replay_options.subject,
        stream=replay_options.to_stream,
        sink=access_options(nats, socket),
    )
    backfill_pipeline.manifest_of(archive)
    settings.replay()
    total = Total(as_json)
    run_batch(spark, lambda session: replay_pipeline.run(session, settings, total.record), as_json=as_json)


@contextmanager
def _held(root: Path) -> Iterator[ArchiveStore]:
    disk = OsDisk(root)
    try:
        with held_archive(disk) as store:
            yield store
    finally:
        disk.close()


def _existing(root: Path) -> Path:
    backfill_pipeline.manifest_of(root)
    return root.absolute()
