"""Readers that stop reading: they hold little, what they were promised stays whole, nobody waits for them."""

import json
import os
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path
from typing import Final

import pytest

import jetstream
from envelope.errors import OffsetOutOfRange
from envelope.limits import KIB, MIB, REQUESTS_IN_FLIGHT_MAX, SELECTED_BYTES_MAX
from jetstream.client.connection import JetstreamClient
from jetstream.client.read.reader import RecordReader
from jetstream.fetch.selection_budget import SELECTION_BYTES_DEFAULT
from jetstream.log.format.batch import decode, iter_frames
from jetstream.node.disk.leased_range import Body
from jetstream.protocol.frames import PREFIX
from tests.support.nodes import run
from tests.support.scene import Scene, a_scene, close_all, large_records, open_files
from tests.support.sockets import RawPeer

READERS: Final = 100
HELD_BYTES_MAX: Final = 256 * KIB + 16 * KIB
"""Of one connection: headers up to the bound, and the answers to what one receive may have held."""


async def ask_for_much(scene: Scene, peer: RawPeer, **fields: object) -> None:
    """Ask for as much as can be asked for at once."""
    for number in range(1, REQUESTS_IN_FLIGHT_MAX):
        await peer.request(op="fetch", id=number, stream="large", offset=0, max_bytes=64 * MIB, **fields)


def by_socket(scene: Scene) -> AbstractAsyncContextManager[JetstreamClient]:
    """A client that has everything sent."""
    return jetstream.connect(socket=f"127.0.0.1:{scene.node.socket_port}", short_circuit_reads=False)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


@pytest.mark.slow(
    "tests/integration/test_socket_peers.py::test_a_reader_that_stops_reading_holds_only_itself"
)
def test_a_hundred_readers_that_stopped_hold_no_memory(tmp_path: Path) -> None:
    """What they asked for, 800 GiB, waits in files; the bystander and a reader of the same stream get on."""

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await large_records(scene.js, 64)
            peers = [await scene.peer(receive_buffer=4096) for _ in range(READERS)]
            before, resident = await scene.metric("jetstream_socket_sent_bytes_total"), resident_bytes()
            for peer in peers:
                await ask_for_much(scene, peer)
            requests = READERS * REQUESTS_IN_FLIGHT_MAX
            await scene.until("jetstream_socket_requests_total", requests, 1 << 40)
            await scene.bystander.gets_on()
            async with by_socket(scene) as js:
                assert len([record async for record in js.read("large")]) == 64
            assert await scene.metric("jetstream_socket_sent_bytes_total") > before + 32 * MIB
            assert await scene.metric("jetstream_socket_buffered_bytes") <= READERS * HELD_BYTES_MAX
            assert resident_bytes() - resident < 200 * MIB, "the one reader's own prefetch included"
            # The bystander's is left.
            await scene.until_cut_off("jetstream_socket_connections", 1, 1)
            assert await scene.metric("jetstream_socket_buffered_bytes") <= HELD_BYTES_MAX
            close_all(peers)

    run(test())


@pytest.mark.slow(
    "tests/integration/test_socket_peers.py::test_a_reader_that_stops_reading_holds_only_itself"
)
def test_a_hundred_readers_of_a_part_that_stopped_hold_little_memory(tmp_path: Path) -> None:
    """The body of a fetch that leaves something out is made in memory, of which all have a part."""

    async def test() -> None:
        async with a_scene(tmp_path) as scene:
            await large_records(scene.js, 64)
            peers = [await scene.peer(receive_buffer=4096) for _ in range(READERS)]
            for peer in peers:
                await ask_for_much(scene, peer, columns=["value"])
            await scene.until("jetstream_socket_buffered_bytes", 1, 1 << 40)
            held, before = await scene.metric("jetstream_socket_buffered_bytes"), -1.0
            while held != before:
                await scene.bystander.gets_on(50)
                held, before = await scene.metric("jetstream_socket_buffered_bytes"), held
            assert held <= READERS * HELD_BYTES_MAX + SELECTION_BYTES_DEFAULT + SELECTED_BYTES_MAX
            await scene.until_cut_off("jetstream_socket_buffered_bytes", 0, HELD_BYTES_MAX)
            close_all(peers)

    run(test())


# --- what is removed while it is read -----------------------------------------------------------------------


async def remove(scene: Scene, how: str) -> None:
    """Have everything removed that can be: all segments but the newest."""
    if how == "truncate":
        await scene.js.streams.truncate("large", before=RECORDS)
    else:
        await scene.js.streams.update("large", retention={"messages": 1})
    while not (await scene.js.streams.info("large")).log_start_offset:
        await scene.bystander.gets_on(1)


RECORDS: Final = 60
KEEP_OFTEN: Final = {"maintenance_interval": timedelta(milliseconds=50)}


@pytest.mark.slow(
    "tests/integration/test_slow_readers.py::test_what_is_removed_while_it_is_sent_and_has_left_the_page_cache_is_read_to_its_end"
)
@pytest.mark.parametrize(
    "how",
    [
        "truncate",
        pytest.param("retention", marks=pytest.mark.slow("tests/integration/test_slow_readers.py")),
    ],
)
def test_a_body_whose_segment_is_removed_arrives_whole_when_the_reader_goes_on(
    tmp_path: Path, how: str
) -> None:
    """The reader had stopped in the middle of the body; the file has gone from its directory meanwhile."""

    async def test() -> None:
        async with a_scene(tmp_path, **KEEP_OFTEN) as scene:
            await large_records(scene.js, RECORDS)
            stored = [record.value async for record in scene.js.read("large")]
            # Not fewer: the kernel takes the rest in crumbs then, however wide the window is made later.
            stopped, stays_away = [await scene.peer(receive_buffer=64 * KIB) for _ in range(2)]
            for peer in (stopped, stays_away):
                await peer.request(op="fetch", id=1, stream="large", offset=0, max_bytes=64 * MIB)
            header_length, body_length = PREFIX.unpack(await stopped.receive(PREFIX.size))
            header = json.loads(await stopped.receive(header_length))
            body = await stopped.receive(100_000)
            await remove(scene, how)
            assert any(target.endswith("(deleted)") for target in open_files(tmp_path))
            stopped.widen()
            body += await stopped.receive(body_length - len(body))
            batches = [decode(frame)[1] for frame in iter_frames(body)]
            got = [value for batch in batches for value in batch.column("value").to_pylist()]
            assert header["next_offset"] == len(got) > 30
            assert got == stored[: len(got)]
            assert await answered_beyond(stopped, header["next_offset"])
            # Whoever stays away is cut off, and the disk space comes back.
            await scene.until_cut_off("jetstream_socket_connections", 3, 3)
            assert not any(target.endswith("(deleted)") for target in open_files(tmp_path))
            close_all((stopped, stays_away))

    run(test())


async def answered_beyond(peer: RawPeer, offset: int) -> bool:
    """Tell whether the connection still serves what is left of the stream."""
    header = await peer.ask(op="list_offsets", id=2, stream="large", at="earliest")
    return bool(header["log_start_offset"] >= offset)


async def read_on(reader: RecordReader, got: list[int]) -> None:
    async for record in reader:
        got.append(record.offset)  # noqa: PERF401 - what was read before an error counts


async def check_overtaken(directory: Path, how: str) -> None:
    """Let a reader be overtaken by a removal while it is sent what goes: it has that, and is told then."""
    async with a_scene(directory, **KEEP_OFTEN) as scene, by_socket(scene) as js:
        await large_records(scene.js, RECORDS)
        reader = js.read("large", max_bytes=MIB, prefetch_bytes=4 * MIB)
        got: list[int] = [(await anext(reader)).offset for _ in range(5)]
        await remove(scene, how)
        start = (await scene.js.streams.info("large")).log_start_offset
        with pytest.raises(OffsetOutOfRange) as told:
            await read_on(reader, got)
        assert got == list(range(len(got)))
        assert len(got) < start == told.value.detail["log_start_offset"]
        assert reader.next_offset == len(got)


@pytest.mark.parametrize(
    "how",
    [
        "retention",
        pytest.param("truncate", marks=pytest.mark.slow("tests/integration/test_slow_readers.py")),
    ],
)
def test_a_reader_that_removal_has_overtaken_is_told_after_what_it_had(tmp_path: Path, how: str) -> None:
    run(check_overtaken(tmp_path, how))


def test_what_is_removed_while_it_is_sent_and_has_left_the_page_cache_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Body, "_cached", lambda body, place: False)
    run(check_overtaken(tmp_path, "truncate"))
