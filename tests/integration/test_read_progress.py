"""What a reader tells of its progress, against a real node."""

import threading
from itertools import pairwise
from pathlib import Path

import pytest

import jetstream
from envelope.types import Offset
from jetstream import ReadProgress
from tests.support.blocking_clients import against_a_node
from tests.support.nodes import nats_and_node, run


def reached(records: int, size: int, offset: int, end: int | None) -> ReadProgress:
    return ReadProgress(records, size, Offset(offset), None if end is None else Offset(end))


def test_progress_begins_with_the_range_and_ends_with_all_of_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("a", "a.>")
            for _ in range(20):
                await js.publish_all([("a.b" if number % 2 else "a.c", b"v") for number in range(50)])
            seen: list[ReadProgress] = []
            table = await js.read_table("a", start=100, end=900, max_bytes=1, progress=seen.append)
            assert seen[0] == reached(0, 0, 100, 900)
            assert seen[-1] == reached(800, table.nbytes, 900, 900)
            assert len(seen) > 3, "one fetch is not all of it"
            assert all(before.offset < after.offset for before, after in pairwise(seen))

            seen.clear()
            half = await js.read_table("a", subject="a.b", progress=seen.append)
            assert (half.num_rows, seen[-1].records, seen[-1].offset, seen[-1].end) == (500, 500, 1000, 1000)

            seen.clear()
            assert len([record async for record in js.read("a", end=10, progress=seen.append)]) == 10
            assert (seen[-1].records, seen[-1].offset) == (10, 10)

            seen.clear()
            assert [record async for record in js.read("a", start="latest", progress=seen.append)] == []
            assert seen == [reached(0, 0, 1000, 1000)]

            seen.clear()
            async with js.read("a", follow=True, progress=seen.append) as reader:
                _ = await anext(reader)
            assert seen == [reached(0, 0, 0, None)]

    run(test())


def test_a_callback_that_fails_ends_the_read_with_its_error(tmp_path: Path) -> None:
    def fail(_: ReadProgress) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("a", "a")
            with pytest.raises(ZeroDivisionError):
                await js.read_table("a", progress=fail)

    run(test())


def test_the_blocking_reader_tells_its_progress_in_the_thread_that_reads(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        seen: list[ReadProgress] = []
        threads: set[threading.Thread] = set()

        def told(progress: ReadProgress) -> None:
            threads.add(threading.current_thread())
            seen.append(progress)

        def fail(_: ReadProgress) -> None:
            raise ZeroDivisionError

        with jetstream.connect_blocking(url) as js:
            js.streams.create("a", "a")
            for _ in range(5):
                js.publish_all([("a", b"v")] * 100)
            table = js.read("a", max_bytes=1, progress=told).to_table()
            assert (seen[0], seen[-1]) == (
                reached(0, 0, 0, 500),
                reached(500, table.nbytes, 500, 500),
            )
            everything = list(seen)
            seen.clear()
            assert js.read("a", max_bytes=1, progress=told).to_batch_reader().read_all().num_rows == 500
            assert seen == everything
            seen.clear()
            assert len(list(js.read("a", max_bytes=1, progress=told))) == 500
            assert seen == everything
            assert threads == {threading.current_thread()}
            with pytest.raises(ZeroDivisionError):
                js.read("a", progress=fail).to_table()
            assert js.read("a").to_table().equals(table)

    against_a_node(tmp_path, scenario)
