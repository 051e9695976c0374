"""An archive under any batches, merges and crashes; and laws of what is merged."""

import contextlib
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream.spark.pipelines.archives.archive_files import ArchivedFile
from jetstream.spark.pipelines.archives.archive_merges import FAN, Merge, due_merges, final_merges
from tests.support.archives import batches_of, rows_by_listing, rows_by_manifest, rows_of, run_query
from tests.support.example_counts import examples
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk, PowerLostError, random_survival

TARGET = 1000
STREAMS = st.sampled_from(("orders", "sales/0", "sales/1"))
FILES = st.lists(
    st.builds(
        ArchivedFile,
        path=st.tuples(st.integers(1, 3), st.integers(0, 10**6)).map(
            lambda at: f"date=2026-01-0{at[0]}/{at[1]}"
        ),
        rows=st.integers(1, 9),
        bytes=st.integers(1, 1200),
    ),
    unique_by=lambda file: file.path,
    max_size=60,
)


def check_merges(merges: list[Merge], files: list[ArchivedFile]) -> None:
    merged = [file for merge in merges for file in merge.files]
    assert len(merged) == len(set(merged)), "no file is in two merges"
    assert set(merged) <= set(files)
    for merge in merges:
        assert len(merge.files) >= 2
        assert {file.directory for file in merge.files} == {merge.directory}
        assert all(file.bytes < TARGET for file in merge.files)
        assert sum(file.bytes for file in merge.files[:-1]) < TARGET


def after(merges: list[Merge], files: list[ArchivedFile], number: int, shrunk: float) -> list[ArchivedFile]:
    removed = {file for merge in merges for file in merge.files}
    made = [
        ArchivedFile(
            f"{merge.directory}/m{number}-{place}",
            sum(file.rows for file in merge.files),
            max(1, int(sum(file.bytes for file in merge.files) * shrunk)),
        )
        for place, merge in enumerate(merges)
    ]
    return [file for file in files if file not in removed] + made


@given(files=FILES, shrunk=st.floats(0.1, 1.1))
def test_merging_ends_with_few_and_large_files(files: list[ArchivedFile], shrunk: float) -> None:
    rows, number = sum(file.rows for file in files), 0
    while merges := final_merges(files, TARGET):
        check_merges(merges, files)
        number += 1
        files = after(merges, files, number, shrunk)
    small: dict[str, int] = defaultdict(int)
    for file in files:
        small[file.directory] += file.bytes < TARGET
    assert all(count <= 1 for count in small.values())
    assert sum(file.rows for file in files) == rows


@given(sizes=st.lists(st.integers(1, 300), max_size=400))
def test_a_row_is_written_anew_a_few_times_however_many_files_come_in(sizes: list[int]) -> None:
    files: list[ArchivedFile] = []
    written = 0
    for number, size in enumerate(sizes):
        files.append(ArchivedFile(f"date=2026-01-01/b{number}", 1, size))
        while merges := due_merges(files, TARGET):
            check_merges(merges, files)
            written += sum(file.bytes for merge in merges for file in merge.files)
            files = after(merges, files, len(sizes) + written, 1.0)
    assert written <= 4 * sum(sizes)
    assert sum(file.bytes < TARGET for file in files) <= 4 * FAN


@settings(max_examples=examples(40))
@given(data=st.data())
def test_an_archive_has_every_row_once_whatever_crashes_come(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.dictionaries(STREAMS, st.integers(0, 4)), min_size=1, max_size=6))
    batches = batches_of(lengths)
    plan = data.draw(st.sampled_from((due_merges, final_merges)))
    disk = MemoryDisk()
    for _ in range(data.draw(st.integers(0, 4))):
        kind = data.draw(st.sampled_from((FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER)))
        disk.faults[disk.calls + data.draw(st.integers(1, 120))] = Fault(
            kind, data.draw(st.integers(0, 2000))
        )
        with contextlib.suppress(PowerLostError):
            run_query(disk, batches, plan)
        disk = disk.power_loss(random_survival(data.draw(st.integers(0, 1000))))
    run_query(disk, batches, plan)
    assert rows_by_manifest(disk) == rows_by_listing(disk) == rows_of(batches)
