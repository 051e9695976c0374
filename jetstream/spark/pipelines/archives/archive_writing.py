"""Changes of a held archive: staged batches come in, small files are merged into larger ones. Blocking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from envelope.errors import CorruptDataError
from jetstream.log.disk.port import Disk
from jetstream.spark.pipelines.archives.archive_files import (
    ArchivedFile,
    ArchivedMicroBatch,
    PendingFile,
    added_batch,
    merged_files,
)
from jetstream.spark.pipelines.archives.archive_merges import Merge
from jetstream.spark.pipelines.archives.archive_store import ArchiveStore
from jetstream.spark.pipelines.archives.parquet_files import Compression, measured, merge_files
from jetstream.spark.reading.offsets import Offsets

TARGET_BYTES_DEFAULT: Final = 128 << 20
"""Of a file: Spark's own unit of reading (``spark.sql.files.maxPartitionBytes``)."""
COMPRESSION_DEFAULT: Final[Compression] = "zstd"
_ENDING: Final = ".parquet"

MergePlan = Callable[[Sequence[ArchivedFile], int], list[Merge]]


@dataclass(frozen=True, slots=True)
class FileSettings:
    """How an archive's files are to be.

    Attributes:
        target_bytes: smaller ones of a directory are merged up to about this size.
        compression: Parquet's.
    """

    target_bytes: int = TARGET_BYTES_DEFAULT
    compression: Compression = COMPRESSION_DEFAULT


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """The staged files of a query's batch.

    Attributes:
        staging: directory of the files; not there if there are none.
        before: the end of the query's batch before, in its streams; empty for its first one.
        ends: the end of this one.
        rows: how many were written, as their writer counted them.
    """

    staging: str
    writer: ArchivedMicroBatch
    before: Offsets
    ends: Offsets
    rows: int


def archive_staged(store: ArchiveStore, batch: StagedBatch) -> None:
    """Bring a batch in; returns when it is durable.

    Raises:
        Fenced, StreamRecreated, CorruptDataError: see `added_batch`, or rows are missing; nothing was done.
        DiskFull, StorageError: the disk refuses.
    """
    staged = _staged_files(store.disk, batch.staging, len(store.manifest.levels))
    found = sum(file.rows for file in staged)
    if found != batch.rows:
        raise CorruptDataError(f"{batch.rows} rows were written to {batch.staging}, and {found} are there")
    store.commit(added_batch(store.manifest, batch.writer, batch.before, batch.ends, staged))


def merge_small_files(store: ArchiveStore, plan: MergePlan, settings: FileSettings) -> int:
    """Do the merges that ``plan`` finds now, each durable before the next; return how many.

    Raises:
        CorruptDataError: a file cannot be read, or has lost rows; the archive keeps it as it is.
        DiskFull, StorageError: the disk refuses.
    """
    merges = plan(store.manifest.files, settings.target_bytes)
    for merge in merges:
        staging = store.staging()
        store.disk.mkdir(staging)
        path = f"{staging}/merged{_ENDING}"
        merge_files(store.disk, merge.files, path, settings.compression)
        store.commit(merged_files(store.manifest, merge.files, measured(store.disk, path, merge.directory)))
    return len(merges)


def _staged_files(disk: Disk, staging: str, depth: int) -> list[PendingFile]:
    if not disk.exists(staging):
        return []
    return [
        measured(disk, f"{staging}/{directory}/{name}", directory)
        for directory in _directories(disk, staging, depth)
        for name in disk.listdir(f"{staging}/{directory}")
        if name.endswith(_ENDING)
    ]


def _directories(disk: Disk, root: str, depth: int) -> list[str]:
    """Return the directories of rows, so many levels below ``root``, as paths from there."""
    found = [""]
    for _ in range(depth):
        found = [
            f"{above}/{name}".lstrip("/")
            for above in found
            for name in disk.listdir(f"{root}/{above}".rstrip("/"))
            if "=" in name
        ]
    return found
