"""*archive*: streams into a directory of Parquet files, each record exactly once.

Spark runs a batch again after a crash, with the same records under the same number. Its files are staged,
and brought in by `archive_writing`, which knows the batches that it has. The archive records how far it
is, so that a lost checkpoint costs nothing: the query goes on at the archive's border.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from jetstream.spark.pipelines.archives.archive_files import (
    CHECKPOINT_DIRECTORY,
    ArchivedMicroBatch,
    ArchiveManifest,
)
from jetstream.spark.pipelines.archives.archive_levels import LEVELS_DEFAULT, column_of, expression_of
from jetstream.spark.pipelines.archives.archive_merges import due_merges
from jetstream.spark.pipelines.archives.archive_store import ArchiveStore
from jetstream.spark.pipelines.archives.archive_writing import (
    FileSettings,
    StagedBatch,
    archive_staged,
    merge_small_files,
)
from jetstream.spark.pipelines.query_log import batch_offsets, has_begun, query_id
from jetstream.spark.pipelines.settings import QuerySettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS: Final = ("key", "value", "stream", "partition", "offset", "timestamp", "subject", "txid", "headers")
"""Of an archive: all of the source's but ``timestampType``, which is 1 in every row."""
STARTS: Final = ("startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp")
"""Options that say where a read begins, in lower case."""
_ORDER: Final = ("stream", "partition", "offset")
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
"""Of the query's own session: Spark's default is of another age (INT96), and few others can write it."""
_NO_MARKER: Final = {"mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The layout of an archive, and when it looks for more records.

    Attributes:
        root: the archive's directory, which driver and executors see under this path.
        levels: of directories in it; see `archive_levels`.
        once: archive what is there at the start, and end.
        every_s: else, seconds from the start of one micro-batch to the next.
    """

    root: Path
    levels: tuple[str, ...] = LEVELS_DEFAULT
    files: FileSettings = field(default_factory=FileSettings)
    once: bool = False
    every_s: float = 60.0

    @property
    def checkpoint(self) -> Path:
        """Where Spark keeps how far the query is: a part of the archive."""
        return self.root / CHECKPOINT_DIRECTORY


def local_uri(path: Path) -> str:
    """Return a path as Spark takes it, whatever its own file system is; nothing in it is escaped there."""
    return f"file://{path.absolute()}"


def source_options(texts: Mapping[str, str], manifest: ArchiveManifest, checkpoint: Path) -> dict[str, str]:
    """Return the options of the source; archived records are not read again, even if the checkpoint is gone.

    A new archive begins with the earliest records, unless ``texts`` names another start.
    """
    starts = {name for name in texts if name.lower() in STARTS}
    options = {name: value for name, value in texts.items() if name not in starts} | {
        "includeHeaders": "true"
    }
    if has_begun(checkpoint) or not manifest.streams:
        return options | ({name: texts[name] for name in starts} or {"startingOffsets": "earliest"})
    border = {name: place.offset for name, place in manifest.border.items()}
    return options | {"startingOffsets": json.dumps(border)}


def start(records: "DataFrame", store: ArchiveStore, settings: ArchiveSettings) -> "StreamingQuery":
    """Start the query that archives ``records``, a stream of the source's rows, into ``store``.

    The archive has to be held until the query has ended.

    Raises:
        InvalidConfig: the archive has other levels of directories.
        DiskFull, StorageError: the disk refuses.
    """
    store.begin(settings.levels)
    archiver = _Archiver(store, settings)
    checkpoint = local_uri(settings.checkpoint)
    query = QuerySettings(checkpoint=checkpoint, once=settings.once, every_s=settings.every_s)
    return query.started(records.writeStream.foreachBatch(archiver.archive))


class _Archiver:
    def __init__(self, store: ArchiveStore, settings: ArchiveSettings) -> None:
        self._store = store
        self._settings = settings

    def archive(self, batch: "DataFrame", number: int) -> None:
        """Archive a batch, if it is not yet; returns when it is durable."""
        writer = ArchivedMicroBatch(query_id(self._settings.checkpoint), number)
        if self._store.manifest.has(writer):
            return
        before, ends = batch_offsets(self._settings.checkpoint, number)
        staging = self._store.staging()
        rows = self._stage(batch, staging)
        archive_staged(self._store, StagedBatch(staging, writer, before, ends, rows))
        merge_small_files(self._store, due_merges, self._settings.files)

    def _stage(self, batch: "DataFrame", staging: str) -> int:
        """Write a batch's rows into files of a new directory; return how many Spark has seen."""
        from pyspark.sql import Observation  # noqa: PLC0415 - settings are made without Spark
        from pyspark.sql.functions import count, lit  # noqa: PLC0415 - likewise

        batch.sparkSession.conf.set(*_TIMESTAMPS)
        levels = self._settings.levels
        directories = [column_of(level) for level in levels]
        seen = Observation()
        rows = batch.selectExpr(*COLUMNS, *(expression_of(level) for level in levels))
        rows = rows.observe(seen, count(lit(1)).alias("rows")).sortWithinPartitions(*directories, *_ORDER)
        writer = rows.write.partitionBy(*directories)
        options = {**_NO_MARKER, "compression": self._settings.files.compression}
        writer.options(**options).parquet(local_uri(self._settings.root / staging))
        found: int = seen.get["rows"]
        return found
