"""What the commands around an archive say, where no Spark is needed to say it."""

import json
from pathlib import Path

import pytest

from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark.pipelines.archives.archive_files import MANIFEST_PATH
from jetstream.spark.pipelines.archives.archive_store import held_archive
from tests.support.archives import batches_of, rows_by_listing, rows_by_manifest, rows_of, run_query
from tests.support.commands import jetstream, json_lines, succeeded

BATCHES = batches_of([{"orders": 4}, {"orders": 2, "sales/1": 3}, {"orders": 5}, {"orders": 1}])


@pytest.fixture
def archive(tmp_path: Path) -> str:
    """An archive of small files."""
    disk = OsDisk(tmp_path / "archive")
    run_query(disk, BATCHES, lambda *_: [])
    disk.close()
    return str(tmp_path / "archive")


def test_small_files_are_merged_without_spark(archive: str) -> None:
    assert json_lines(succeeded("pipeline", "merge", "--archive", archive, "--json")) == [
        {"files_before": 4, "files": 2}
    ]
    assert succeeded("pipeline", "merge", "--archive", archive) == "merged 2 files into 2\n"
    disk = OsDisk(Path(archive))
    assert rows_by_manifest(disk) == rows_by_listing(disk) == rows_of(BATCHES)
    disk.close()


def test_an_archive_that_somebody_writes_to_is_not_merged(archive: str) -> None:
    disk = OsDisk(Path(archive))
    with held_archive(disk):
        result = jetstream("pipeline", "merge", "--archive", archive)
    disk.close()
    assert result.exit_code == 1
    assert "is held by another process" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["merge"],
        ["backfill", "--count"],
        ["replay", "--session", "s"],
    ],
)
def test_a_directory_that_is_no_archive_is_refused_before_spark_starts(
    command: list[str], tmp_path: Path
) -> None:
    for directory in (tmp_path, tmp_path / "missing"):
        result = jetstream("pipeline", *command, "--archive", str(directory))
        assert result.exit_code == 4, result.output
        assert result.stderr.startswith("error: there is no archive")
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--partition-by", "hour"], 4, "date comes first"),
        (["--compression", "zip"], 2, "zstd"),
        (["--file-size", "many"], 2, "not a size"),
        (["--every", "often"], 2, "not a duration"),
        (["--option", "endingOffsets=latest"], 4, "endingOffsets"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_spark_starts(
    options: list[str], code: int, said: str, tmp_path: Path
) -> None:
    given = ["pipeline", "archive", "--stream", "orders", "--archive", str(tmp_path / "new"), *options]
    result = jetstream(*given)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert not (tmp_path / "new").exists()


def test_where_rows_go_is_said_once(archive: str) -> None:
    for options in ([], ["--count", "--parquet", "rows"]):
        result = jetstream("pipeline", "backfill", "--archive", archive, *options)
        assert result.exit_code == 2
        assert "one of --parquet and --count" in result.stderr


def test_a_damaged_manifest_is_said_in_one_line(archive: str) -> None:
    path = Path(archive) / MANIFEST_PATH
    line, _, checksum = path.read_text().partition("\n")
    content = json.loads(line)
    content["files"] = []
    path.write_text(json.dumps(content) + "\n" + checksum)
    result = jetstream("pipeline", "merge", "--archive", archive)
    assert result.exit_code == 6
    assert result.stderr.count("\n") == 1
