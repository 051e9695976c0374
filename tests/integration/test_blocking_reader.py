"""The reader without asyncio, asked in every way and interrupted everywhere, against a real node."""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import jetstream
from envelope.errors import UnknownStream
from jetstream import ReadProgress
from jetstream.client.blocking import client as blocking
from jetstream.client.blocking.client import BlockingClient, BlockingReader
from jetstream.client.read import records
from tests.support.blocking_clients import against_a_node
from tests.support.interrupts import InterruptAtCall, Interrupted

BATCHES = 3
BATCH_RECORDS = 4
EVERYTHING = list(range(BATCHES * BATCH_RECORDS))

Way = Callable[[BlockingReader], Iterator[int]]
"""Yields the offsets of what is left, at each moment of what the reader has handed out just now."""


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the records of one batch be made in several steps."""
    for module in (blocking, records):
        monkeypatch.setattr(module, "RECORDS_AT_ONCE", BATCH_RECORDS - 1)


def publish_batches(js: BlockingClient) -> None:
    js.streams.create("numbers", "numbers")
    for _ in range(BATCHES):
        js.publish_all([("numbers", b"v")] * BATCH_RECORDS)


def offsets_of(column: "pa.Array[Any] | pa.ChunkedArray[Any]") -> list[int]:
    return [offset.as_py() for offset in column]


def by_records(reader: BlockingReader) -> Iterator[int]:
    for record in reader:
        yield record.offset


def by_batches(reader: BlockingReader) -> Iterator[int]:
    for batch in reader.batches():
        yield from offsets_of(batch["offset"])


def by_table(reader: BlockingReader) -> Iterator[int]:
    yield from offsets_of(reader.to_table()["offset"])


WAYS = pytest.mark.parametrize("way", [by_records, by_batches, by_table])


@WAYS
def test_a_reader_goes_on_where_it_is_whichever_way_it_is_asked(tmp_path: Path, way: Way) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            publish_batches(js)
            for first in range(len(EVERYTHING) + 1):
                reader = js.read("numbers", max_bytes=1)
                assert [record.offset for record in islice(reader, first)] == EVERYTHING[:first]
                assert reader.next_offset == (first or None)
                for record in islice(reader, 1):
                    assert (record.offset, reader.next_offset) == (first, first + 1)
                assert list(way(reader)) == EVERYTHING[first + 1 :]
                assert reader.next_offset == len(EVERYTHING)
                assert list(way(reader)) == []

    against_a_node(tmp_path, scenario)


@WAYS
def test_what_was_fetched_while_a_callback_failed_is_handed_out_next(tmp_path: Path, way: Way) -> None:
    def scenario(url: str) -> None:
        told = 0

        def fail_at_each(_: ReadProgress) -> None:
            nonlocal told
            told += 1
            raise Interrupted

        with jetstream.connect_blocking(url) as js:
            publish_batches(js)
            reader = js.read("numbers", max_bytes=1, progress=fail_at_each)
            got = handed_out(reader, way)
            assert got == EVERYTHING
            assert told > BATCHES

    against_a_node(tmp_path, scenario)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # it is interrupted before it is begun
@WAYS
def test_an_interrupt_at_any_call_loses_and_repeats_nothing(tmp_path: Path, way: Way) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            publish_batches(js)
            calls = 0
            interrupted = True
            while interrupted:
                calls += 1
                reader = js.read("numbers", max_bytes=1)
                interrupt = InterruptAtCall(calls)
                got = handed_out(reader, way, interrupt)
                assert got == EVERYTHING, f"interrupted at call {calls}"
                interrupted = interrupt.came
            assert calls > 10

    against_a_node(tmp_path, scenario)


def handed_out(reader: BlockingReader, way: Way, interrupt: InterruptAtCall | None = None) -> list[int]:
    """Read to the end, going on after interrupts; return the offsets."""
    got: list[int] = []
    while True:
        sys.setprofile(interrupt)
        try:
            got.extend(way(reader))  # what came before an interrupt is in it
        except Interrupted:
            interrupt = None
            if reader.next_offset is not None:
                assert reader.next_offset == len(got), "C12"
        else:
            return got
        finally:
            sys.setprofile(None)


def test_an_error_that_ended_a_reader_is_raised_again(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            reader = js.read("nothing")
            for _ in range(2):
                with pytest.raises(UnknownStream):
                    list(reader)
            with pytest.raises(UnknownStream):
                reader.to_table()

    against_a_node(tmp_path, scenario)


def test_the_start_is_known_although_nothing_has_come(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        def interrupt(_: ReadProgress) -> None:
            raise Interrupted

        with jetstream.connect_blocking(url) as js:
            publish_batches(js)
            reader = js.read("numbers", start="latest", follow=True, progress=interrupt)
            with pytest.raises(Interrupted):
                next(reader)
            assert reader.next_offset == len(EVERYTHING)

    against_a_node(tmp_path, scenario)
