import pytest

from envelope.errors import StorageError
from envelope.types import LeaderEpoch, Offset, SyncMode
from jetstream.log.format.batch import BatchFlags, encode
from jetstream.log.format.schema import SCHEMA_MESSAGE
from jetstream.log.inspection import ProblemKind, inspect_segment, inspect_stream
from jetstream.log.log import Log, LogConfig
from jetstream.log.segments.index import BatchIndex, decode_index
from jetstream.log.segments.segment import segment_path
from tests.support.logs import (
    DIRECTORY,
    NOW,
    Record,
    append,
    begun,
    file_content,
    overwrite,
    records_batch,
    values_batch,
)
from tests.support.memory_disk import MemoryDisk, everything_survives

CONFIG = LogConfig(segment_bytes=2500)
FIRST = segment_path(DIRECTORY, Offset(0))


def filled(disk: MemoryDisk) -> Log:
    log = begun(disk, CONFIG)
    for number in range(5):
        append(log, [b"%d" % number] * 2, NOW + number)
        log.writer.sync()
    return log


def kinds(disk: MemoryDisk) -> list[ProblemKind]:
    return [problem.kind for problem in inspect_stream(disk, DIRECTORY).problems]


def test_a_closed_log_is_healthy_and_fully_described() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    calls = disk.calls
    report = inspect_stream(disk, DIRECTORY)
    assert report.healthy
    assert (report.log_start_offset, report.log_end_offset, report.corrupt_ranges) == (0, 10, ())
    assert report.checkpoint is not None
    assert report.checkpoint.clean
    assert [(found.base, found.next, found.sealed) for found in report.segments] == [
        (0, 4, True),
        (4, 8, True),
        (8, 10, False),
    ]
    assert [found.index for found in report.segments] == ["complete"] * 3
    assert [found.records for found in report.segments] == [4, 4, 2]
    first = report.segments[0].batches[0]
    assert (first.base, first.next, first.records, first.leader_epoch) == (0, 2, 2, 1)
    assert first.flags == BatchFlags.ROLL | BatchFlags.GROUP_START
    changing = {"write", "create", "truncate", "unlink", "rename", "sync"}
    assert not changing & {call.split()[0] for call in disk.trace[calls:]}, "inspecting changes nothing"


def test_a_log_with_nothing_in_it_is_healthy() -> None:
    disk = MemoryDisk()
    begun(disk).close()
    report = inspect_stream(disk, DIRECTORY)
    assert report.healthy
    assert (report.log_start_offset, report.log_end_offset) == (0, 0)


def test_a_truncated_log_is_healthy() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.truncate_before(Offset(5), Offset(10))
    log.close()
    report = inspect_stream(disk, DIRECTORY)
    assert report.healthy, report.problems
    assert report.log_start_offset == 5


def test_a_torn_tail_is_told_from_corruption() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    append(log, [b"torn"])
    found = disk.power_loss(everything_survives)
    file = found.open(log.reader.segments[-1].path)
    file.truncate(file.size() - 8)
    assert kinds(found) == [ProblemKind.TORN]


def test_intact_batches_behind_a_torn_first_one_are_legal() -> None:
    disk = MemoryDisk()
    log = begun(disk, LogConfig(sync=SyncMode.OS))
    append(log, [b"torn"])
    append(log, [b"whole"])
    first = log.reader.locate(Offset(0)).entry
    found = disk.power_loss(everything_survives)
    file = found.open(segment_path(DIRECTORY, Offset(0)))
    file.write([bytes(100)], first.position + 200)
    file.close()
    assert {problem.kind for problem in inspect_stream(found, DIRECTORY).problems} == {ProblemKind.TORN}


def test_damage_in_a_sealed_segment_is_corruption() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    content = file_content(disk, FIRST)
    overwrite(disk, FIRST, content[:1000] + bytes(64) + content[1064:])
    report = inspect_stream(disk, DIRECTORY)
    assert report.corrupt_ranges == ((0, 2),)
    assert ProblemKind.CORRUPT in kinds(disk)


def test_a_missing_end_marker_is_corruption() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    overwrite(disk, FIRST, file_content(disk, FIRST)[:-8])
    assert ProblemKind.CORRUPT in kinds(disk)


@pytest.mark.parametrize("name", ["checkpoint", "epochs", f"{0:020d}.index"])
def test_a_damaged_derived_file_is_told_and_is_no_corruption(name: str) -> None:
    disk = MemoryDisk()
    filled(disk).close()
    overwrite(disk, f"{DIRECTORY}/{name}", b"garbage")
    assert kinds(disk) == [ProblemKind.DERIVED]


def test_an_index_of_another_segment_is_told() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    overwrite(disk, f"{DIRECTORY}/{0:020d}.index", file_content(disk, f"{DIRECTORY}/{4:020d}.index"))
    report = inspect_stream(disk, DIRECTORY)
    assert report.segments[0].index == "wrong"
    assert kinds(disk) == [ProblemKind.DERIVED]


@pytest.mark.parametrize("lie", [None, 1, 3])
def test_an_index_that_lies_about_a_txid_is_told(lie: int | None) -> None:
    disk = MemoryDisk()
    log = begun(disk)
    log.writer.append_group((encode(records_batch([Record(txid=2)]), Offset(0), log.reader.last_epoch),), NOW)
    log.close()
    assert kinds(disk) == []
    path = f"{DIRECTORY}/{0:020d}.index"
    _, index = decode_index(file_content(disk, path))
    false = BatchIndex()
    false.append(index[0]._replace(last_txid=lie), verified=False)
    overwrite(disk, path, false.encode(1))
    report = inspect_stream(disk, DIRECTORY)
    assert report.segments[0].index == "wrong"
    assert [problem.kind for problem in report.problems] == [ProblemKind.DERIVED]


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (encode(values_batch([b"a"]), Offset(0), LeaderEpoch(1)).seal(BatchFlags.GROUP_START), "ROLL"),
        (
            encode(records_batch([Record(timestamp=9), Record(timestamp=8)]), Offset(0), LeaderEpoch(1)).seal(
                BatchFlags.ROLL
            ),
            "timestamps",
        ),
        (
            encode(records_batch([Record()], 4).slice(0, 1), Offset(4), LeaderEpoch(1)).seal(BatchFlags.ROLL),
            "expected",
        ),
    ],
)
def test_intact_batches_that_no_writer_makes_are_told(frame: memoryview, fault: str) -> None:
    disk = MemoryDisk()
    disk.mkdir(DIRECTORY)
    disk.create(FIRST).close()
    overwrite(disk, FIRST, SCHEMA_MESSAGE + bytes(frame))
    problems = inspect_segment(disk, FIRST, last=True).problems
    assert any(fault in problem.description for problem in problems), problems


def test_only_segments_are_inspected_as_such() -> None:
    disk = MemoryDisk()
    filled(disk).close()
    with pytest.raises(StorageError):
        inspect_segment(disk, f"{DIRECTORY}/checkpoint")
    with pytest.raises(StorageError):
        inspect_stream(disk, "missing")
