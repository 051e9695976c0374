import asyncio
import io
import os
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from envelope.errors import RecordTooLarge
from envelope.limits import RECORD_BYTES_MAX
from jetstream.cli.standard_input import input_lines, whole_input


def given(monkeypatch: pytest.MonkeyPatch, file: BinaryIO) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))


async def all_lines() -> list[bytes]:
    return [line async for line in input_lines()]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\n", [b""]),
        (b"a\r\n", [b"a\r"]),
        (b"\xff\x00\nb\n", [b"\xff\x00", b"b"]),
        (b"x" * 200_000 + b"\ny", [b"x" * 200_000, b"y"]),
    ],
)
def test_lines_are_split_at_line_feeds_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: bytes, lines: list[bytes]
) -> None:
    given(monkeypatch, io.BytesIO(text))
    assert asyncio.run(all_lines()) == lines
    path = tmp_path / "input"
    path.write_bytes(text)
    with path.open("rb") as file:
        given(monkeypatch, file)
        assert asyncio.run(all_lines()) == lines


def test_a_pipe_is_read_to_its_end_and_left_open_for_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        os.write(writing, b"one\ntwo")
        os.close(writing)
        given(monkeypatch, file)
        assert asyncio.run(all_lines()) == [b"one", b"two"]
        assert file.read() == b""


def test_the_whole_input_is_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, io.BytesIO(b"a\nb\xff" * 50_000))
    assert asyncio.run(whole_input()) == b"a\nb\xff" * 50_000


def test_more_than_a_record_holds_is_refused_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open("/dev/zero", "rb", buffering=0) as endless:
        for read in (whole_input, all_lines):
            given(monkeypatch, io.BytesIO(endless.read(RECORD_BYTES_MAX + 1)))
            with pytest.raises(RecordTooLarge):
                asyncio.run(read())
