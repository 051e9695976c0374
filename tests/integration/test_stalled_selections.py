"""Readers of a part that do not read: all share one budget, and others get on beside them."""

import asyncio
import json
from pathlib import Path
from typing import Final

import jetstream
from envelope.limits import KIB, MIB
from jetstream.client.connection import JetstreamClient
from jetstream.fetch.selection_budget import HOLD_NS, WAIT_NS
from jetstream.node.settings.node_config import SocketConfig
from jetstream.protocol.frames import PREFIX
from tests.support.nodes import run
from tests.support.pauses import pause
from tests.support.scene import Scene, a_scene, close_all, large_records
from tests.support.sockets import RawPeer

BUDGET: Final = 4 * MIB
BATCH_BYTES_MAX: Final = 4 * 513 * KIB
"""Of a batch of `large_records`, which is sent whole."""
STALLED: Final = 12
FETCHES: Final = 16
SOCKET: Final = SocketConfig(port=0, selection_bytes=BUDGET)
HELD: Final = "jetstream_socket_selection_bytes"
WAITING: Final = "jetstream_socket_selections_waiting"


async def stalled_peers(scene: Scene, count: int) -> list[RawPeer]:
    """Peers that have asked for a column many times and read nothing, whose answers exceed the budget."""
    peers = [await scene.peer(receive_buffer=4096) for _ in range(count)]
    for peer in peers:
        for number in range(1, FETCHES + 1):
            await peer.request(
                op="fetch", id=number, stream="large", offset=0, max_bytes=64 * MIB, columns=["value"]
            )
    await scene.until(WAITING, 1, STALLED * FETCHES)
    return peers


async def values(js: JetstreamClient) -> list[bytes | None]:
    return [record.value async for record in js.read("large", columns=["value"])]


def test_readers_that_do_not_read_share_one_budget(tmp_path: Path) -> None:
    """Publishers have their acks, a reader that reads has everything, and the memory comes back."""

    async def test() -> None:
        async with a_scene(tmp_path, socket=SOCKET) as scene:
            await large_records(scene.js, 64)
            stored = [record.value async for record in scene.js.read("large")]
            peers = await stalled_peers(scene, STALLED)
            await scene.bystander.gets_on()
            socket = f"127.0.0.1:{scene.node.socket_port}"
            async with jetstream.connect(socket=socket) as js, asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(values(js))
                while not reading.done():
                    assert await scene.metric(HELD) <= BUDGET + BATCH_BYTES_MAX
                    if await scene.metric("jetstream_socket_connections_total", event="hoarding") < STALLED:
                        scene.clock.put_forward(HOLD_NS / 10e9)
                    await pause()
            assert reading.result() == stored
            assert await scene.metric("jetstream_socket_connections_total", event="hoarding") >= 1
            close_all(peers)
            await scene.until(HELD, 0, 0)
            assert await scene.metric(WAITING) == 0
            await scene.bystander.gets_on()

    run(test())


def test_a_fetch_that_waits_is_answered_with_nothing_in_time_and_keeps_its_turn(tmp_path: Path) -> None:
    """Nobody takes a node for dead that has no memory for an answer; requests behind the fetch go on."""

    async def test() -> None:
        async with a_scene(tmp_path, socket=SOCKET) as scene:
            await large_records(scene.js, 16)
            peers = await stalled_peers(scene, STALLED)
            patient = await scene.peer()
            await patient.request(op="fetch", id=1, stream="large", offset=0, columns=["value"])
            behind = await patient.ask(op="list_offsets", id=2, stream="large", at="earliest")
            assert (behind["id"], behind["offset"]) == (2, 0)
            scene.clock.put_forward(WAIT_NS / 1e9)
            empty, body = await patient.response()
            assert (empty["id"], empty["records"], empty["next_offset"], body) == (1, 0, 0, b"")
            await patient.request(op="fetch", id=3, stream="large", offset=0, columns=["value"])
            close_all(peers)
            answer, body = await patient.response()
            assert answer["id"] == 3
            assert answer["next_offset"] == answer["records"] > 0
            assert len(body) > 512 * KIB
            patient.close()

    run(test())


def test_an_answer_whose_reader_left_in_the_middle_is_given_back(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_scene(tmp_path, socket=SOCKET) as scene:
            await large_records(scene.js, 16)
            peer = await scene.peer(receive_buffer=4096)
            await peer.request(op="fetch", id=1, stream="large", offset=0, columns=["value"])
            header_length, body_length = PREFIX.unpack(await peer.receive(PREFIX.size))
            header = json.loads(await peer.receive(header_length))
            assert header["records"] > 0
            assert await scene.metric(HELD) == body_length
            peer.close()
            await scene.until(HELD, 0, 0)

    run(test())
