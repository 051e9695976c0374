"""Old segments stay readable, by us and by everybody who reads Arrow."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import polars as pl
import pyarrow as pa
import pytest

from envelope.types import Compression, Offset
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA, SCHEMA_MESSAGE
from jetstream.log.format.txid_column import last_txid_in
from jetstream.log.inspection import inspect_stream
from jetstream.log.segments.segment import segment_path
from tests.interop.golden_segments import (
    BATCHES,
    DIRECTORY,
    EXPECTED,
    SEALED,
    UNSEALED,
    expected_rows,
    golden,
    segment,
    text_of,
)
from tests.support.logs import DIRECTORY as LOG_DIRECTORY
from tests.support.logs import opened
from tests.support.memory_disk import MemoryDisk

REPOSITORY: Final = Path(__file__).parents[2]
OTHER_PYARROWS: Final = ("18", "20", "22", "24")


def rows_of(table: pa.Table) -> list[dict[str, object]]:
    return [
        {
            "offset": row["offset"],
            "timestamp": time.value,
            "subject": row["subject"],
            "key": text_of(row["key"]),
            "headers": None
            if row["headers"] is None
            else [[header["key"], text_of(header["value"])] for header in row["headers"]],
            "txid": row["txid"],
            "value": text_of(row["value"]),
        }
        for row, time in zip(table.to_pylist(), table.column("timestamp").combine_chunks(), strict=True)
    ]


def test_the_expected_records_are_those_of_the_files() -> None:
    assert json.loads(EXPECTED.read_text()) == expected_rows()


@pytest.mark.parametrize("name", [*SEALED, UNSEALED])
def test_plain_pyarrow_reads_a_golden_segment(name: str) -> None:
    reader = pa.ipc.open_stream(golden(name))
    assert reader.schema.equals(SCHEMA, check_metadata=True)
    table = reader.read_all()
    table.validate(full=True)
    assert rows_of(table) == expected_rows()
    assert len(table.to_batches()) == len(BATCHES)


@pytest.mark.parametrize("name", SEALED)
def test_polars_reads_a_sealed_golden_segment(name: str) -> None:
    frame = pl.read_ipc_stream(DIRECTORY / name)
    rows = expected_rows()
    assert frame["offset"].to_list() == [row["offset"] for row in rows]
    assert frame["subject"].to_list() == [row["subject"] for row in rows]
    assert [text_of(value) for value in frame["value"]] == [row["value"] for row in rows]
    assert [text_of(key) for key in frame["key"]] == [row["key"] for row in rows]
    assert frame["txid"].to_list() == [row["txid"] for row in rows]
    assert frame["timestamp"].dtype == pl.Datetime("us", "UTC")
    headers = [
        None if found is None else [[header["key"], text_of(header["value"])] for header in found]
        for found in frame["headers"].to_list()
    ]
    assert headers == [row["headers"] for row in rows]


@pytest.mark.parametrize("name", [*SEALED, UNSEALED])
def test_a_golden_segment_opens_as_a_log(name: str) -> None:
    disk = MemoryDisk()
    disk.mkdir(LOG_DIRECTORY)
    file = disk.create(segment_path(LOG_DIRECTORY, Offset(0)))
    file.write([golden(name)], 0)
    log = opened(disk, full=True)
    assert log.reader.corrupt_ranges == ()
    assert log.recovery.cut_bytes == 0
    assert log.log_end_offset == len(expected_rows())
    assert [(entry.epoch, entry.start) for entry in log.reader.epochs.starts] == [(1, 0), (3, 6)]
    frames: list[memoryview] = []
    while len(frames) < len(BATCHES):
        offset = Offset(decode(frames[-1])[0].next if frames else 0)
        frames.extend(iter_frames(log.reader.read(offset, 1 << 20, log.log_end_offset)))
    assert rows_of(pa.Table.from_batches([decode(frame)[1] for frame in frames])) == expected_rows()
    log.close()
    assert inspect_stream(disk, LOG_DIRECTORY).healthy


@pytest.mark.parametrize("name", SEALED)
def test_a_golden_segment_is_framed_as_the_format_says(name: str) -> None:
    content = golden(name)
    assert content.startswith(SCHEMA_MESSAGE)
    assert content.endswith(END_OF_STREAM)
    body = content[len(SCHEMA_MESSAGE) : -len(END_OF_STREAM)]
    headers = [decode(frame)[0] for frame in iter_frames(body)]
    assert [header.flags for header in headers] == [3, 2, 2, 2]
    assert [(header.base, header.next) for header in headers] == [(0, 1), (1, 6), (6, 66), (66, 67)]
    assert [header.leader_epoch for header in headers] == [1, 1, 3, 3]


def test_compressed_segments_are_smaller() -> None:
    plain, lz4, zstd = (len(golden(name)) for name in SEALED)
    assert zstd < lz4 < plain


@pytest.mark.parametrize("name", SEALED)
def test_what_is_written_today_is_read_like_the_golden_segment(name: str) -> None:
    today = segment(Compression(name.removesuffix(".arrows")), sealed=True)
    assert rows_of(pa.ipc.open_stream(today).read_all()) == expected_rows()


# --- other versions of pyarrow, in processes of their own ----------------------------------------------

_READ = """
import sys, pyarrow, tests.interop.test_golden_segments as golden
assert pyarrow.__version__.split(".")[0] == sys.argv[1], pyarrow.__version__
for name in (*golden.SEALED, golden.UNSEALED):
    golden.test_plain_pyarrow_reads_a_golden_segment(name)
    golden.test_a_golden_segment_opens_as_a_log(name)
for name in golden.SEALED:
    golden.test_a_golden_segment_is_framed_as_the_format_says(name)
    golden.test_what_is_written_today_is_read_like_the_golden_segment(name)
open(sys.argv[2], "wb").write(golden.segment(golden.Compression.ZSTD, sealed=True))
"""


@pytest.mark.deep
@pytest.mark.parametrize("version", OTHER_PYARROWS)
def test_another_pyarrow_reads_ours_and_writes_what_we_read(version: str, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, "--target", str(packages), f"pyarrow=={version}.*"], check=True)
    written = tmp_path / "written.arrows"
    done = subprocess.run(
        [sys.executable, "-c", _READ, version, str(written)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": f"{packages}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    content = written.read_bytes()
    assert content.startswith(SCHEMA_MESSAGE), "the schema message is pinned"
    assert rows_of(pa.ipc.open_stream(content).read_all()) == expected_rows()
    body = content[len(SCHEMA_MESSAGE) : -len(END_OF_STREAM)]
    assert [decode(frame)[0].next for frame in iter_frames(body)] == [1, 6, 66, 67]
    assert [last_txid_in(frame) for frame in iter_frames(body)] == [None, (1 << 63) - 1, 550, None]
