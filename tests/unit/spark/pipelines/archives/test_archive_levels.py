"""How rows are put into directories, and what Spark writes down of a query."""

from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, InvalidConfig, RequestError
from jetstream.spark.pipelines.archive import source_options
from jetstream.spark.pipelines.archives.archive_files import ArchivedStream, ArchiveManifest
from jetstream.spark.pipelines.archives.archive_levels import checked_levels, column_of
from jetstream.spark.pipelines.backfill import live_options
from jetstream.spark.pipelines.query_log import batch_offsets, has_begun, query_id
from jetstream.spark.reading.offsets import StreamOffset

BORDER = ArchiveManifest(version=2, levels=("date",), streams={"orders": ArchivedStream("life", 0, 42, 42)})
END = '{"v":1,"streams":{"orders":{"id":"life","offset":%d}}}'


def test_levels_begin_with_the_date_and_name_their_columns() -> None:
    assert checked_levels(["date", "subject:2", "hour"]) == ("date", "subject:2", "hour")
    assert column_of("subject:2") == "subject_2"


@pytest.mark.parametrize(
    "words", [[], ["hour"], ["date", "date"], ["date", "day"], ["date", "subject:0"], ["subject"]]
)
def test_levels_that_cannot_be_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidConfig):
        checked_levels(words)


def checkpoint(directory: Path, *ends: str) -> Path:
    (directory / "offsets").mkdir()
    (directory / "metadata").write_text('{"id":"0e0c5f8e"}')
    for number, end in enumerate(ends):
        (directory / "offsets" / str(number)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{end}')
    return directory


def test_a_batch_is_what_lies_between_two_ends_of_the_checkpoint(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, END % 3, END % 42)
    assert query_id(found) == "0e0c5f8e"
    assert batch_offsets(found, 0) == ({}, {"orders": StreamOffset("life", 3)})
    assert batch_offsets(found, 1) == (
        {"orders": StreamOffset("life", 3)},
        {"orders": StreamOffset("life", 42)},
    )


@pytest.mark.parametrize("end", ["", "no JSON", "3", '{"v":1,"streams":{}}\nmore'])
def test_a_checkpoint_that_says_something_else_is_told(tmp_path: Path, end: str) -> None:
    with pytest.raises(CorruptDataError):
        batch_offsets(checkpoint(tmp_path, end), 0)


def test_a_checkpoint_of_another_source_or_version_is_told(tmp_path: Path) -> None:
    found = checkpoint(tmp_path, '{"orders":{"0":42}}')
    with pytest.raises(RequestError, match="version"):
        batch_offsets(found, 0)
    (found / "offsets" / "0").write_text("v2\n{}\n" + END % 3)
    with pytest.raises(CorruptDataError, match="version v2"):
        batch_offsets(found, 0)
    (found / "metadata").write_text("{}")
    with pytest.raises(CorruptDataError, match="id"):
        query_id(found)


def test_a_new_archive_begins_with_the_earliest_records_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    given = {"stream": "orders"}
    assert source_options(given, ArchiveManifest(), tmp_path)["startingOffsets"] == "earliest"
    moment = given | {"startingTimestamp": "2026-11-23T09:00:00Z"}
    assert source_options(moment, ArchiveManifest(), tmp_path) == moment | {"includeHeaders": "true"}


def test_an_archive_without_its_checkpoint_goes_on_at_its_border(tmp_path: Path) -> None:
    given = {"stream": "orders", "STARTINGTIMESTAMP": "2026-11-23T09:00:00Z"}
    told = {"stream": "orders", "startingOffsets": '{"orders": 42}', "includeHeaders": "true"}
    assert source_options(given, BORDER, tmp_path) == told
    assert has_begun(checkpoint(tmp_path, END % 3))
    assert source_options(given, BORDER, tmp_path) == given | {"includeHeaders": "true"}


def test_what_is_behind_the_border_is_read_of_the_archived_streams_only() -> None:
    given = {
        "servers": "nats://127.0.0.1",
        "Stream": "others",
        "startingOffsets": "earliest",
        "minPartitions": "4",
    }
    assert live_options(BORDER, given) == {
        "servers": "nats://127.0.0.1",
        "minPartitions": "4",
        "streams": "orders",
        "startingOffsets": '{"orders": 42}',
        "includeHeaders": "true",
    }
