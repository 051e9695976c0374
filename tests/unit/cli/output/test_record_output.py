"""What the formats make of many batches, in real files."""

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet

from jetstream.cli.output.record_format import RecordFormat
from jetstream.cli.output.record_output import complete_file, record_output
from jetstream.log.format.schema import SCHEMA


def batch_of(*offsets: int) -> pa.RecordBatch:
    rows = [
        {
            "offset": offset,
            "timestamp": offset,
            "subject": f"s.{offset}",
            "key": b"k" if offset % 2 else None,
            "headers": [{"key": "h", "value": b"\xff"}] if offset % 3 else None,
            "txid": offset if offset % 2 else None,
            "value": None if offset % 5 == 0 else b"%d" % offset,
        }
        for offset in offsets
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def write(record_format: RecordFormat, path: Path, *batches: pa.RecordBatch, at_once: bool = False) -> None:
    with record_output(record_format, path, at_once) as output:
        for batch in batches:
            output.write(batch)


ONE_BY_ONE = [batch_of(offset) for offset in range(100)]
EVERYTHING = pa.Table.from_batches(ONE_BY_ONE)


def test_a_parquet_file_holds_every_column_of_every_record(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(RecordFormat.PARQUET, path, *ONE_BY_ONE)
    file = parquet.ParquetFile(path)
    assert file.schema_arrow.equals(SCHEMA)
    assert file.read().equals(EVERYTHING)
    assert file.num_row_groups == 1, "records that were stored one by one"
    assert pl.read_parquet(path).equals(pl.DataFrame(EVERYTHING))


def test_an_arrow_stream_holds_every_column_and_gathers_what_was_stored_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "a.arrows"
    write(RecordFormat.ARROW, path, *ONE_BY_ONE)
    batches = list(pa.ipc.open_stream(path.read_bytes()))
    assert [batch.num_rows for batch in batches] == [100]
    assert pa.Table.from_batches(batches).equals(EVERYTHING)
    assert pl.read_ipc_stream(path).equals(pl.DataFrame(EVERYTHING))


def test_for_a_reader_that_waits_nothing_is_gathered(tmp_path: Path) -> None:
    with record_output(RecordFormat.ARROW, tmp_path / "a.arrows", at_once=True) as output:
        for number, batch in enumerate(ONE_BY_ONE[:3]):
            output.write(batch)
            [partial] = tmp_path.iterdir()
            stream = pa.ipc.open_stream(partial.read_bytes())
            assert [stream.read_next_batch() for _ in range(number + 1)][-1].equals(batch)


def test_a_large_value_is_not_kept_back(tmp_path: Path) -> None:
    large = batch_of(1).set_column(6, SCHEMA.field("value"), pa.array([bytes(5 << 20)], pa.binary()))
    path = tmp_path / "a.arrows"
    write(RecordFormat.ARROW, path, large, large, batch_of(2))
    assert [batch.num_rows for batch in pa.ipc.open_stream(path.read_bytes())] == [1, 1, 1]


@pytest.mark.parametrize("record_format", list(RecordFormat))
def test_nothing_is_a_complete_file_too(tmp_path: Path, record_format: RecordFormat) -> None:
    path = tmp_path / "nothing"
    write(record_format, path)
    match record_format:
        case RecordFormat.PARQUET:
            assert parquet.read_table(path).equals(SCHEMA.empty_table())
        case RecordFormat.ARROW:
            assert pa.ipc.open_stream(path.read_bytes()).read_all().equals(SCHEMA.empty_table())
        case RecordFormat.JSONL | RecordFormat.TEXT:
            assert path.read_bytes() == b""


def test_lines_go_to_a_file_as_they_go_to_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    write(RecordFormat.JSONL, path, *ONE_BY_ONE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["offset"] for line in lines] == list(range(100))


class StopError(Exception):
    """Ends a block early."""


@pytest.mark.parametrize("record_format", list(RecordFormat))
def test_a_block_that_fails_leaves_the_directory_as_it_was(
    tmp_path: Path, record_format: RecordFormat
) -> None:
    path = tmp_path / "kept"
    path.write_text("of an earlier run")

    def interrupted() -> None:
        with record_output(record_format, path) as output:
            output.write(batch_of(1, 2))
            assert len(list(tmp_path.iterdir())) == 2
            raise StopError

    with pytest.raises(StopError):
        interrupted()
    assert [file.name for file in tmp_path.iterdir()] == ["kept"]
    assert path.read_text() == "of an earlier run"


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with complete_file(link) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "none")), complete_file(tmp_path / "none/a"):
        pass
