"""A last txid that is set holds: after SIGKILL, on the next leader, and when its records are gone."""

import asyncio
from pathlib import Path

import pytest

import jetstream
from envelope.errors import TxidDecreasing, TxidTooFar
from jetstream.client.connection import JetstreamClient
from tests.support.cluster_scene import three_nodes
from tests.support.commands import jetstream as command
from tests.support.commands import json_lines, succeeded
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, NodeProcess, run

HIGHEST = (1 << 63) - 1


async def published(js: JetstreamClient, txid: int) -> int:
    return (await js.publish("orders.x", b"%d" % txid, txid=txid, timeout=WAIT_SECONDS)).offset


async def first_from(js: JetstreamClient, txid: int) -> int | None:
    """The txid of the record that a look-up finds; None: there is none."""
    async for record in js.read("orders", start=jetstream.Txid(txid)):
        return record.txid
    return None


def test_lower_txids_are_taken_once_it_is_set_whatever_happens_to_the_node(tmp_path: Path) -> None:
    with NatsServer(tmp_path / "nats") as server:
        node = NodeProcess(tmp_path / "data", server.url)
        node.start()
        try:
            run(_set_and_kill(node, server.url))
        finally:
            node.kill()


async def _set_and_kill(node: NodeProcess, url: str) -> None:
    async with jetstream.connect(url) as js:
        await js.streams.create("orders", "orders.>", segment_bytes=64 * 1024)
        for txid in (5, 7, HIGHEST):
            await published(js, txid)
        with pytest.raises(TxidDecreasing):
            await published(js, 8)
        asked = await asyncio.to_thread(command, "stream", "set-txid", "orders", "7", nats=url, given="n\n")
        assert asked.exit_code == 1
        with pytest.raises(TxidDecreasing):
            await published(js, 8)
        text = await asyncio.to_thread(succeeded, "stream", "set-txid", "orders", "7", "--yes", nats=url)
        assert text.strip() == "the last txid of stream orders is 7 from offset 3 on"
        node.kill()
        node.start()
        with pytest.raises(TxidDecreasing):
            await published(js, 6)
        assert await published(js, 8) == 3
        assert [await first_from(js, txid) for txid in (5, 6, 7, 8, 9, HIGHEST)] == [5, 7, 7, 8, None, None]
        await js.streams.update("orders", txid_max_step=10)
        with pytest.raises(TxidTooFar):
            await published(js, HIGHEST)
        await js.streams.truncate("orders", before=4)  # its note is of both, and their records are gone
        node.kill()
        node.start()
        with pytest.raises(TxidDecreasing):
            await published(js, 7)
        with pytest.raises(TxidTooFar):
            await published(js, 19)
        [answer] = json_lines(
            await asyncio.to_thread(
                succeeded, "stream", "set-txid", "orders", "1000", "--yes", "--json", nats=url
            )
        )
        assert answer == {"name": "orders", "offset": 4, "txid": 1000, "last_txid": 1000}
        assert await published(js, 1001) == 4


@pytest.mark.slow("tests/unit/metadata/test_catalog_txids.py", "tests/unit/ingest/test_txids.py")
def test_the_next_leaders_take_lower_txids_too(tmp_path: Path) -> None:
    async def test() -> None:
        with three_nodes(tmp_path) as scene:
            async with scene.client() as js:
                await scene.created(js.nats, "orders", ["a", "b", "c"])
                await scene.cluster.until_whole(js.nats, "orders")
                for txid in (7, HIGHEST):
                    await published(js, txid)
                done = await js.streams.set_txid("orders", 7)
                assert (done.offset, done.last_txid) == (2, 7)
                wanted = 7
                for _ in range(2):
                    leader = str((await scene.cluster.until_whole(js.nats, "orders"))["leader"])
                    scene.cluster[leader].kill()
                    await scene.cluster.until_taken_over(js.nats, "orders", leader)
                    with pytest.raises(TxidDecreasing):
                        await published(js, wanted - 1)
                    wanted += 1
                    await published(js, wanted)
                    scene.cluster[leader].start()
                assert [await first_from(js, txid) for txid in (7, 8, 9, 10)] == [7, 8, 9, None]

    run(test())
