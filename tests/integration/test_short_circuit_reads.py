"""Readers on the node's machine read its files themselves, and see what the socket would have sent."""

import asyncio
import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jetstream
from envelope.limits import KIB, MIB
from jetstream.client.nodes.socket_access import socket_access
from jetstream.client.read.fetch_pipeline import FetchSettings, Wanted
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings
from jetstream.fetch.queries import selection_of
from jetstream.fetch.selection import Encoder, Selection
from jetstream.log.log import LogConfig
from jetstream.node.readers import dispatcher as socket_requests
from jetstream.protocol.requests import Fetch
from tests.support.example_counts import examples
from tests.support.held_threads import HeldThreads
from tests.support.page_cache import empty_page_cache
from tests.support.scene import a_scene, large_records
from tests.support.short_circuit import BY_SOCKET, SEGMENTS, all_of, collect, fill, here, values, values_of
from tests.support.sockets import run, serving, until

# --- the same records ---------------------------------------------------------------------------------------


def test_records_are_those_of_the_socket_across_segments_and_in_the_open_one(
    tmp_path: Path, loop: str
) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            stream = world.stream("s", SEGMENTS)
            stored = fill(stream)
            assert len(stream.log.reader.segments) > 3
            by_socket = await all_of(world.records(ReadRange("s"), world.links(access=BY_SOCKET)))
            counters = world.server.counters
            assert counters.short_circuit_bytes == 0
            sent = counters.bytes_sent
            assert await all_of(world.records(ReadRange("s"))) == by_socket
            assert [record.value for record in by_socket] == stored
            assert counters.short_circuit_bytes > 0.9 * sent
            assert counters.bytes_sent - sent < 0.1 * sent

    run(test(), loop)


SIZES = st.lists(st.lists(st.integers(0, 30 * KIB), min_size=1, max_size=4), min_size=1, max_size=25)


@settings(max_examples=examples(40))
@given(SIZES, st.integers(0, 60), st.integers(0, 60), st.sampled_from([1, 40 * KIB, MIB]))
def test_any_part_of_any_stream_is_read_as_by_the_socket(
    sizes: list[list[int]], start: int, end: int, max_bytes: int
) -> None:
    async def test(root: Path) -> None:
        async with here(root) as world:
            stream = world.stream("s", LogConfig(segment_bytes=100 * KIB))
            stream.add(*([os.urandom(size) for size in batch] for batch in sizes))
            wanted = ReadRange("s", start=min(start, stream.high_watermark), end=end)
            expected = await all_of(
                world.records(wanted, world.links(access=BY_SOCKET), max_bytes, prefetch_bytes=4 * max_bytes)
            )
            found = await all_of(world.records(wanted, max_bytes=max_bytes, prefetch_bytes=4 * max_bytes))
            assert found == expected

    with TemporaryDirectory() as directory:
        run(test(Path(directory)))


def test_a_reader_that_follows_reads_what_comes_where_it_lies(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            stream = world.stream("s")
            reader = world.records(ReadRange("s", follow=True))
            for number in range(20):
                value = bytes([number]) * (20 * KIB)
                stream.add([value])
                assert (await anext(reader)).value == value
            assert world.server.counters.short_circuit_bytes > 20 * 20 * KIB
            await reader.aclose()

    run(test(), loop)


# --- when it happens ----------------------------------------------------------------------------------------


def test_only_ranges_of_more_than_16_kib_are_read_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            stream = world.stream("s")
            peer = await world.peer()
            seen = set()
            for number, size in enumerate((1, 10 * KIB, 15 * KIB, 17 * KIB, 100 * KIB)):
                stream.add([bytes(size)])
                await peer.request(op="fetch", id=number, stream="s", offset=number, short_circuit=True)
                header, body = await peer.response()
                assert ("file" in header) == (not body)
                length = header["file"]["length"] if "file" in header else len(body)
                assert ("file" in header) == (length > 16 * KIB)
                assert length > size
                seen.add("file" in header)
            assert seen == {True, False}
            peer.close()

    run(test())


@pytest.mark.parametrize(
    "wanted", [Wanted(subject="s.*"), Wanted(key="k1"), Wanted(columns=("value",))], ids=str
)
def test_a_part_of_what_is_stored_comes_by_the_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    asked: list[Fetch] = []

    def selection(fetch: Fetch, selected_max: int, encode: Encoder | None) -> Selection | None:
        asked.append(fetch)
        return selection_of(fetch, selected_max, encode)

    monkeypatch.setattr(socket_requests, "selection_of", selection)

    async def test() -> None:
        async with here(tmp_path) as world:
            fill(world.stream("s", SEGMENTS))
            read_range = ReadRange("s", wanted=wanted)
            expected = await all_of(world.records(read_range, world.links(access=BY_SOCKET)))
            assert await all_of(world.records(read_range)) == expected
            assert world.server.counters.short_circuit_bytes == 0
            assert asked
            assert not any(fetch.short_circuit for fetch in asked), "what has everything is not asked for"

    run(test())


def test_a_selection_is_made_by_the_node_whatever_the_client_allows(tmp_path: Path) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            world.stream("s").add([bytes(100 * KIB)])
            peer = await world.peer()
            await peer.request(op="fetch", id=1, stream="s", offset=0, short_circuit=True, columns=["value"])
            header, body = await peer.response()
            assert "file" not in header
            assert len(body) > 100 * KIB
            peer.close()

    run(test())


@pytest.mark.parametrize("machine", [None, "0" * 32])
def test_a_client_that_is_not_on_the_nodes_machine_does_not_ask(tmp_path: Path, machine: str | None) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", machine=machine) as world:
            stored = fill(world.stream("s", SEGMENTS))
            assert await values(world.batches(ReadRange("s"))) == stored
            assert world.server.counters.short_circuit_bytes == 0

    run(test())


def test_a_node_that_tells_no_machine_sends_whatever_it_is_asked(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([bytes(100 * KIB)])
            peer = await world.peer()
            await peer.request(op="fetch", id=1, stream="s", offset=0, short_circuit=True)
            header, body = await peer.response()
            assert "file" not in header
            assert len(body) > 100 * KIB
            peer.close()

    run(test())


def test_a_real_node_and_the_library_do_it_by_themselves_and_count_it(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await large_records(scene.js, 8)
            metric = "jetstream_socket_short_circuit_bytes_total"
            host = f"127.0.0.1:{scene.node.socket_port}"
            async with jetstream.connect(socket=host, short_circuit_reads=False) as js:
                by_socket = [record async for record in js.read("large")]
            with await asyncio.to_thread(
                jetstream.connect_blocking, socket=host, short_circuit_reads=False
            ) as blocking:
                assert await asyncio.to_thread(lambda: list(blocking.read("large"))) == by_socket
            assert await scene.metric(metric) == 0
            assert [record async for record in scene.js.read("large")] == by_socket
            first = await scene.metric(metric)
            assert first > 8 * 512 * KIB
            with await asyncio.to_thread(jetstream.connect_blocking, socket=host) as blocking:
                assert await asyncio.to_thread(lambda: list(blocking.read("large"))) == by_socket
            assert await scene.metric(metric) == 2 * first

    run(test())


def test_a_real_node_does_not_if_its_settings_say_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_scene(tmp_path, socket={"port": 0, "short_circuit_reads": False}) as scene:
            await large_records(scene.js, 4)
            assert len([record async for record in scene.js.read("large")]) == 4
            assert await scene.metric("jetstream_socket_short_circuit_bytes_total") == 0
            assert await scene.metric("jetstream_socket_sent_bytes_total") > 4 * 512 * KIB

    run(test())


def test_a_reader_is_told_of_no_more_than_it_would_fetch_ahead(tmp_path: Path) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            fill(world.stream("s", SEGMENTS), batches=100)
            links = world.links()
            reader = world.batches(ReadRange("s"), links, max_bytes=64 * KIB, prefetch_bytes=256 * KIB)
            await anext(reader)
            link = await links.link()
            await until(lambda: link.in_flight == 0)
            assert world.server.counters.short_circuit_bytes <= (256 + 2 * 64) * KIB, "C5"
            reader.limit(32 * KIB, 32 * KIB)
            before = world.server.counters.short_circuit_bytes
            while world.server.counters.short_circuit_bytes == before:
                await anext(reader)
            assert (await anext(reader)).num_rows
            await reader.aclose()

    run(test())


# --- whoever does not wait ----------------------------------------------------------------------------------


async def _next(reader: BatchReader) -> pa.RecordBatch | None:
    return await anext(reader, None)


def _is_at_it(task: asyncio.Task[pa.RecordBatch | None], threads: HeldThreads, before: int) -> bool:
    return task.done() or threads.begun > before


async def waits(
    group: asyncio.TaskGroup, threads: HeldThreads, reader: BatchReader, seen: list[bytes]
) -> asyncio.Task[pa.RecordBatch | None]:
    """Read until the next batch is waited for: a thread reads it, and is held."""
    threads.let_go.clear()
    while True:
        before = threads.begun
        task = group.create_task(_next(reader))
        await until(partial(_is_at_it, task, threads, before))
        if not task.done():
            return task
        batch = task.result()
        assert batch is not None, "it never had to wait"
        seen += values_of(batch)


@pytest.mark.parametrize("is_let_go", [True, False])
def test_a_wait_that_is_cancelled_while_a_thread_reads_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, is_let_go: bool
) -> None:
    """The thread may come to its end before the next wait begins, or after it."""
    empty_page_cache(monkeypatch)

    async def test() -> None:
        threads = HeldThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        async with here(tmp_path) as world, asyncio.TaskGroup() as group:
            stored = fill(world.stream("s", SEGMENTS))
            reader = world.batches(ReadRange("s"), max_bytes=64 * KIB)
            seen: list[bytes] = []
            for _ in range(4):
                task = await waits(group, threads, reader, seen)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (reader.next_offset or 0) == len(seen)
                if is_let_go:
                    threads.let_go.set()
                    await asyncio.to_thread(lambda: None)
                threads.let_go.set()
                seen += values_of(await anext(reader))
            await collect(reader, seen)
            assert seen == stored
            assert world.server.counters.bytes_sent < 100 * KIB, "all of it was read where it lies"

    run(test(), loop)


def test_a_reader_that_is_closed_while_a_thread_reads_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        threads = HeldThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        async with here(tmp_path) as world, asyncio.TaskGroup() as group:
            fill(world.stream("s", SEGMENTS))
            settings = ReadSettings(FetchSettings(max_bytes=64 * KIB), retry_s=0)
            reader = BatchReader(world.links(), ReadRange("s"), settings)
            task = await waits(group, threads, reader, [])
            await reader.aclose()
            threads.let_go.set()
            assert await task is None

    run(test(), loop)


def test_access_of_a_client_says_whether_it_may() -> None:
    assert socket_access(None, None).short_circuit
    assert not socket_access(None, None, short_circuit=False).short_circuit
