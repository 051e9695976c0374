"""A held archive: what it refuses, and what an archive that was damaged says."""

from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, RequestError, StorageError
from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines.archives.archive_files import MANIFEST_PATH, ArchivedMicroBatch, Span
from jetstream.spark.pipelines.archives.archive_store import held_archive, read_manifest
from jetstream.spark.pipelines.archives.archive_writing import StagedBatch, archive_staged
from jetstream.spark.pipelines.archives.parquet_files import measured
from tests.support.archives import (
    LEVELS,
    Row,
    batches_of,
    parquet_bytes,
    rows_by_listing,
    rows_by_manifest,
    rows_of,
    run_query,
    stage,
    write_file,
)
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk

BATCHES = batches_of([{"orders": 4}, {"orders": 2, "sales/1": 3}])


def test_one_process_at_a_time_holds_an_archive(tmp_path: Path) -> None:
    disk, other = OsDisk(tmp_path), OsDisk(tmp_path)
    with (
        held_archive(disk),
        pytest.raises(StorageError, match="held by another process"),
        held_archive(other),
    ):
        pass
    with held_archive(other):
        pass
    disk.close()
    other.close()


def test_what_is_no_archive_is_not_read() -> None:
    with pytest.raises(RequestError, match="no archive"):
        read_manifest(MemoryDisk())


def test_a_change_that_was_cut_short_is_finished_before_the_next_one() -> None:
    disk = MemoryDisk()
    with held_archive(disk) as store:
        store.begin(LEVELS)
        writer, batch = ArchivedMicroBatch("query", 0), BATCHES[0]
        staged = StagedBatch(stage(store, batch.rows), writer, batch.before, batch.ends, len(batch.rows))
        disk.faults[disk.calls + 8] = Fault(FaultKind.IO_ERROR)
        with pytest.raises(StorageError):
            archive_staged(store, staged)
        with pytest.raises(StorageError, match="cut short"):
            store.staging()
    run_query(disk, BATCHES)
    assert rows_by_manifest(disk) == rows_by_listing(disk) == rows_of(BATCHES)


def test_a_file_that_is_gone_before_it_was_placed_is_said() -> None:
    disk = MemoryDisk()
    number = _call_of_the_first_move()
    disk.faults[number] = Fault(FaultKind.IO_ERROR)
    with pytest.raises(StorageError, match="input/output"):
        run_query(disk, BATCHES)
    disk.process_loss()
    disk.remove_tree("_work")
    with pytest.raises(CorruptDataError, match=r"b0000000002-00000\.parquet is missing"):
        run_query(disk, BATCHES)


def _call_of_the_first_move() -> int:
    disk = MemoryDisk()
    run_query(disk, BATCHES)
    return 1 + next(place for place, call in enumerate(disk.trace) if call.startswith("rename date="))


def test_rows_that_were_written_and_are_not_there_are_noticed() -> None:
    disk = MemoryDisk()
    with held_archive(disk) as store:
        store.begin(LEVELS)
        batch = BATCHES[0]
        for staging in (stage(store, batch.rows[1:]), store.staging()):
            staged = StagedBatch(
                staging, ArchivedMicroBatch("query", 0), batch.before, batch.ends, len(batch.rows)
            )
            with pytest.raises(CorruptDataError, match="4 rows were written"):
                archive_staged(store, staged)
        assert store.manifest.rows == 0


def test_a_file_is_measured_over_all_its_row_groups() -> None:
    rows = [Row("orders", 0, offset) for offset in (7, 5, 8)] + [Row("sales", 1, 3)]
    disk = MemoryDisk()
    write_file(disk, "part.parquet", parquet_bytes(rows, row_group_rows=2))
    found = measured(disk, "part.parquet", "date=2026-01-01")
    assert found.spans == {("orders", 0): Span(3, 5, 9), ("sales", 1): Span(1, 3, 4)}
    assert found.bytes == len(parquet_bytes(rows, row_group_rows=2))


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b"{}\n00000000\n"])
def test_files_that_are_damaged_are_told_by_their_name(content: bytes) -> None:
    disk = MemoryDisk()
    write_file(disk, "damaged.parquet", content)
    with pytest.raises(CorruptDataError, match=r"damaged\.parquet"):
        measured(disk, "damaged.parquet", "date=2026-01-01")
    run_query(disk, BATCHES)
    disk.unlink(MANIFEST_PATH)
    write_file(disk, MANIFEST_PATH, content)
    with pytest.raises(CorruptDataError):
        read_manifest(disk)
