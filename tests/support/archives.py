"""Archives made by hand: rows in Parquet, staged as a query does, and what an archive has afterwards."""

import io
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from envelope.errors import StorageError
from jetstream.log.disk.port import Disk, File, make_directories
from jetstream.log.disk.state_file import read_whole
from jetstream.spark.pipelines.archives.archive_files import ArchivedMicroBatch
from jetstream.spark.pipelines.archives.archive_merges import final_merges
from jetstream.spark.pipelines.archives.archive_store import ArchiveStore, held_archive, read_manifest
from jetstream.spark.pipelines.archives.archive_writing import (
    FileSettings,
    MergePlan,
    StagedBatch,
    archive_staged,
    merge_small_files,
)
from jetstream.spark.reading.offsets import Offsets, StreamOffset

LIFE = "life"
LEVELS = ("date",)


class Row(NamedTuple):
    """A row, with the day that it is of."""

    stream: str
    partition: int
    offset: int
    day: int = 1


Rows = Counter[tuple[str, int, int]]
"""How often each row is there; exactly once is right."""


def parquet_bytes(rows: Iterable[Row], row_group_rows: int | None = None) -> bytes:
    """Return a Parquet file of these rows."""
    kept = list(rows)
    table = pa.table(
        {
            "stream": pa.array([row.stream for row in kept], pa.string()),
            "partition": pa.array([row.partition for row in kept], pa.int32()),
            "offset": pa.array([row.offset for row in kept], pa.int64()),
            "value": pa.array([b"value of %d" % row.offset for row in kept], pa.binary()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_rows)
    return sink.getvalue()


def write_file(disk: Disk, path: str, content: bytes) -> None:
    """Write a file as Spark does: nothing of it is durable."""
    file = disk.create(path)
    try:
        file.write((content,), 0)
    finally:
        file.close()


def stage(store: ArchiveStore, rows: Iterable[Row], tasks: int = 1) -> str:
    """Stage rows as tasks of a query do, one file for each day and task; return the directory."""
    staging = store.staging()
    shares: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        shares.setdefault((row.day, row.offset % tasks), []).append(row)
    for (day, task), share in shares.items():
        directory = f"{staging}/date=2026-01-{day:02}"
        make_directories(store.disk, directory)
        write_file(store.disk, f"{directory}/part-{task:05}-of-a-task.parquet", parquet_bytes(share))
    return staging


class Batch(NamedTuple):
    """What a micro-batch reads: of each stream the end, and rows."""

    before: Offsets
    ends: Offsets
    rows: list[Row]


def batches_of(lengths: Iterable[Mapping[str, int]], days: int = 2) -> list[Batch]:
    """Return batches that read so many rows more of each stream."""
    made: list[Batch] = []
    reached: dict[str, int] = {}
    for number, more in enumerate(lengths):
        before = dict(made[-1].ends) if made else {}
        before = {name: end._replace(start=None) for name, end in before.items()}
        ends, rows = dict(before), []
        for name, count in more.items():
            start = reached.get(name, 0)
            reached[name] = start + count
            ends[name] = StreamOffset(LIFE, start + count, None if name in before else start)
            stream, _, partition = name.partition("/")
            rows += [
                Row(stream, int(partition or 0), offset, 1 + number % days)
                for offset in range(start, start + count)
            ]
        made.append(Batch(before, ends, rows))
    return made


SETTINGS = FileSettings(target_bytes=12_000)


def run_query(disk: Disk, batches: list[Batch], plan: MergePlan = final_merges) -> None:
    """Archive all batches that are not archived yet, as a query does that starts, and merge small files."""
    with held_archive(disk) as store:
        store.begin(LEVELS)
        for number, batch in enumerate(batches):
            writer = ArchivedMicroBatch("query", number)
            if store.manifest.has(writer):
                continue
            staging = stage(store, batch.rows)
            archive_staged(store, StagedBatch(staging, writer, batch.before, batch.ends, len(batch.rows)))
            merge_small_files(store, plan, SETTINGS)


def rows_of(batches: Iterable[Batch]) -> Rows:
    """Return what an archive of these batches has to have."""
    return Counter((row.stream, row.partition, row.offset) for batch in batches for row in batch.rows)


def rows_by_manifest(disk: Disk) -> Rows:
    """Return what an exact reader sees."""
    return _rows(disk, [file.path for file in read_manifest(disk).files])


def rows_by_listing(disk: Disk) -> Rows:
    """Return what a reader sees who reads whatever lies in the directories of days."""
    days = [name for name in disk.listdir("") if name.startswith("date=")]
    return _rows(disk, [f"{day}/{name}" for day in days for name in disk.listdir(day)])


def _rows(disk: Disk, paths: Iterable[str]) -> Rows:
    found: Rows = Counter()
    for path in paths:
        table = pq.read_table(io.BytesIO(read_whole(disk, path)), columns=["stream", "partition", "offset"])
        found.update((row["stream"], row["partition"], row["offset"]) for row in table.to_pylist())
    return found


class FailingDisk:
    """Another disk, whose call of one number fails before it does anything; as `Disk` for the rest."""

    def __init__(self, disk: Disk, failing: int) -> None:
        self._disk = disk
        self._failing = failing
        self.calls = 0

    def _strike(self) -> Disk:
        self.calls += 1
        if self.calls == self._failing:
            raise StorageError("the call that fails")
        return self._disk

    def open(self, path: str) -> File:
        return self._strike().open(path)

    def create(self, path: str) -> File:
        return self._strike().create(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def listdir(self, path: str) -> list[str]:
        return self._strike().listdir(path)

    def mkdir(self, path: str) -> None:
        self._strike().mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._strike().rename(source, target)

    def unlink(self, path: str) -> None:
        self._strike().unlink(path)

    def remove_tree(self, path: str) -> None:
        self._strike().remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._strike().sync_dir(path)

    def sync_all(self) -> bool:
        return self._strike().sync_all()

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def lock(self, path: str) -> File:
        return self._strike().lock(path)
