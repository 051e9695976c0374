"""``jetstream read`` into files and pipes, against a real node."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyarrow import parquet

import jetstream as client_library
from jetstream.log.format.schema import SCHEMA
from tests.support.commands import (
    WAIT_SECONDS,
    CommandProcess,
    jetstream,
    json_lines,
    succeeded,
    up,
)
from tests.support.forked_process import ForkedProcess
from tests.support.nats_server import NatsServer
from tests.support.pauses import pause_thread

RECORDS: Final = 2502
GAVE_UP: Final = "error: no node answers"
ATTEMPTS: Final = 3
"""At a command that waits for 5 s only: a machine that does other work may have looked too late."""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of the NATS server of a node with the stream ``orders``."""
    process, endpoints = up(tmp_path_factory.mktemp("data"))
    with process:
        url = endpoints["nats"]
        succeeded("stream", "create", "orders", "--subject", "orders.>", nats=url)
        succeeded("pub", "orders.a", "\xff", "--key", "k", "--txid", "7", "-H", "A: b", nats=url)
        succeeded("pub", "orders.b", "--tombstone", nats=url)
        succeeded("pub", "orders.c", "value", "--count", "2500", nats=url)
        yield url
        assert process.signalled(signal.SIGTERM)[0] == 0


@pytest.fixture
def table(nats: str) -> pa.Table:
    """Everything in ``orders``, as the client library reads it."""
    with client_library.connect_blocking(nats) as js:
        return js.read("orders").to_table()


def arrow_of(*arguments: str, nats: str) -> pa.Table:
    """What a command writes to a pipe."""
    result = jetstream(*arguments, "--format", "arrow", nats=nats)
    assert result.exit_code == 0, result.stderr
    return pa.ipc.open_stream(result.stdout_bytes).read_all()


def test_a_parquet_file_is_the_stream(nats: str, table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "orders.parquet"
    assert succeeded("read", "orders", "--format", "parquet", "--output", str(path), nats=nats) == ""
    stored = parquet.read_table(path)
    assert stored.schema.equals(SCHEMA)
    assert stored.num_rows == RECORDS
    assert stored.equals(table)
    assert list(tmp_path.iterdir()) == [path]


def test_arrow_goes_to_a_pipe_and_to_a_file(nats: str, table: pa.Table, tmp_path: Path) -> None:
    assert arrow_of("read", "orders", nats=nats).equals(table)
    path = tmp_path / "orders.arrows"
    succeeded("read", "orders", "--format", "arrow", "-o", str(path), nats=nats)
    assert pa.ipc.open_stream(path.read_bytes()).read_all().equals(table)


def test_lines_go_to_a_file(nats: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    succeeded("read", "orders", "-o", str(path), nats=nats)
    assert path.read_text() == succeeded("read", "orders", nats=nats)
    assert len(json_lines(path.read_text())) == RECORDS


def test_ranges_selections_and_limits_hold_in_every_format(nats: str, table: pa.Table) -> None:
    def offsets(*arguments: str) -> list[int]:
        found: list[Any] = arrow_of("read", "orders", *arguments, nats=nats)["offset"].to_pylist()
        lines = json_lines(succeeded("read", "orders", *arguments, nats=nats))
        assert [line["offset"] for line in lines] == found
        return found

    times = [moment.isoformat() for moment in table["timestamp"].to_pylist() if moment is not None]
    assert offsets("--from", "3", "--to", "5") == [3, 4]
    assert offsets("--from", "earliest", "--to", "end", "--limit", "2") == [0, 1]
    assert offsets("--from", "2500", "--to", "latest") == [2500, 2501]
    assert offsets("--from", times[1], "--to", times[2]) == [1]
    assert offsets("--from", "-2") == [2500, 2501]
    assert offsets("--from=-3", "--to", "-1") == [2499, 2500]
    assert offsets("--from", "-1h", "--limit", "1") == [0]
    assert offsets("--to", "-1h") == []
    assert offsets("--subject", "orders.b") == [1]
    assert offsets("--limit", "0") == []
    assert offsets("--from", "latest") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--format", "parquet"), "needs --output"),
        (("--format", "parquet", "--follow"), "--follow has none"),
        (("--format", "parquet", "--follow", "--output", "a"), "--follow has none"),
        (("--follow", "--output", "a"), "--follow has none"),
        (("--output", "/dev/null"), "is no file"),
        (("--format", "csv"), "is not one of"),
        (("--from", "-10x"), "'-10x' is no place in a stream: use earliest, latest, an offset, -10"),
        (("--to", "earliest"), "earliest is before every record"),
    ],
)
def test_what_cannot_be_written_is_said_before_anything_is_read(
    arguments: tuple[str, ...], said: str
) -> None:
    result = jetstream("read", "orders", *arguments, nats="nats://127.0.0.1:1")
    assert result.exit_code == 2
    assert said in " ".join(re.sub(r"[│╭╰─╮╯]", "", result.stderr).split())


def test_an_unknown_stream_leaves_no_file_and_no_byte(nats: str, tmp_path: Path) -> None:
    for record_format in ("arrow", "parquet"):
        arguments = ("read", "nowhere", "--format", record_format, "--output", str(tmp_path / "a"))
        assert jetstream(*arguments, nats=nats).exit_code == 3
        assert list(tmp_path.iterdir()) == []
    result = jetstream("read", "nowhere", "--format", "arrow", nats=nats)
    assert (result.exit_code, result.stdout_bytes) == (3, b"")


def test_a_directory_that_is_not_there_is_not_found(nats: str, tmp_path: Path) -> None:
    result = jetstream("read", "orders", "--output", str(tmp_path / "none" / "a"), nats=nats)
    assert (result.exit_code, result.stderr) == (3, f"error: there is no directory {tmp_path / 'none'}\n")


WITHOUT_ROOM = """
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
runpy.run_module("jetstream", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("record_format", ["arrow", "parquet", "jsonl"])
def test_a_disk_without_room_leaves_the_file_that_was_there(
    nats: str, tmp_path: Path, record_format: str
) -> None:
    path = tmp_path / "kept"
    path.write_text("of an earlier run")
    with ForkedProcess(
        "tests.support.forked_program",
        (WITHOUT_ROOM, "read", "orders", "--format", record_format, "-o", str(path)),
        environment={**os.environ, "JETSTREAM_NATS": nats},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        printed, complaint = process.communicate(timeout=WAIT_SECONDS)
    assert (process.returncode, printed) == (1, b""), complaint
    assert complaint.startswith(b"error: ")
    assert len(complaint.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "of an earlier run"


def test_an_interrupted_read_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    """The command waits for a node that is not there: long enough to be interrupted."""
    path = tmp_path / "output" / "orders.parquet"
    path.parent.mkdir()
    arguments = ("read", "orders", "--format", "parquet", "--output", str(path))
    with NatsServer(tmp_path / "server") as server:
        for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
            ended = (0, "", GAVE_UP)
            for _ in range(ATTEMPTS):
                if ended[2].startswith(GAVE_UP):
                    with CommandProcess(*arguments, nats=server.url) as process:
                        until_a_file_appears_in(path.parent)
                        ended = process.signalled(number)
            assert ended == (code, "", "")
            assert not path.exists()
            left = [file.name.startswith(".orders.parquet.") for file in path.parent.iterdir()]
            assert left == ([] if number is signal.SIGINT else [True])


def until_a_file_appears_in(directory: Path) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not list(directory.iterdir()):
        assert time.monotonic() < limit, "no file has appeared"
        pause_thread()


def test_a_reader_that_closes_the_pipe_ends_an_arrow_stream_without_a_word(nats: str) -> None:
    with CommandProcess("read", "orders", "--follow", "--format", "arrow", nats=nats) as process:
        process.close_output()
        succeeded("pub", "orders.c", "one more", nats=nats)
        code, _, error = process.finished()
    assert (code, error) == (0, "")


# --- on a terminal --------------------------------------------------------------------------------


def on_a_terminal(*arguments: str, nats: str, stdout: int | None = None) -> tuple[int, str]:
    """Run a command whose standard error is a terminal; return its exit code and what appeared there."""
    ours, terminal = pty.openpty()
    with ForkedProcess(
        "jetstream",
        arguments,
        stdout=terminal if stdout is None else stdout,
        stderr=terminal,
        environment={**os.environ, "JETSTREAM_NATS": nats, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:
        os.close(terminal)
        shown = b""
        while select.select([ours], [], [], WAIT_SECONDS)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
        os.close(ours)
    return process.returncode, shown.decode()


def test_a_terminal_shows_progress_and_the_file_does_not_have_it(nats: str, tmp_path: Path) -> None:
    path = tmp_path / "orders.jsonl"
    code, shown = on_a_terminal("read", "orders", "--to", str(RECORDS), "-o", str(path), nats=nats)
    assert code == 0
    assert "reading orders" in shown
    assert f"{RECORDS}/{RECORDS}" in shown
    assert len(json_lines(path.read_text())) == RECORDS


def test_records_on_a_terminal_are_not_disturbed_by_a_bar(nats: str) -> None:
    code, shown = on_a_terminal("read", "orders", "--to", "5", nats=nats)
    assert code == 0
    assert len(shown.splitlines()) == 5
    assert "reading orders" not in shown


def test_arrow_is_not_written_to_a_terminal(nats: str) -> None:
    code, shown = on_a_terminal("read", "orders", "--format", "arrow", nats=nats)
    assert code == 2
    assert "not for a terminal" in shown
