"""Read replicas on real nodes: they come and go under publishing, serve reads, die, and never lead."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetstream
from jetstream.client.connection import JetstreamClient
from jetstream.node.api import placement
from tests.support.cluster_bytes import all_bytes
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, nats_and_node, request, run
from tests.support.pauses import pause
from tests.support.sockets import RawPeer


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("read-replicas")) as scene:
        yield scene


async def published(js: JetstreamClient, stream: str, numbers: range) -> None:
    for number in numbers:
        await js.publish(f"{stream}.n", b"%d" % number, timeout=WAIT_SECONDS)


async def until_all_have(
    scene: ClusterScene, js: JetstreamClient, stream: str, end: int, read: set[str]
) -> None:
    """Wait until these are the read replicas, and know that so much is committed."""
    await scene.until(
        js.nats,
        stream,
        lambda info: (
            {
                state["node"]
                for state in info["replica_states"]
                if state["is_read_replica"] and state["high_watermark"] == end and not state["in_sync"]
            }
            == read
            == set(info["read_replicas"])
        ),
    )


async def bytes_at(scene: ClusterScene, node: str, stream: str, end: int) -> bytes:
    peer = RawPeer(scene.cluster[node].socket_port)
    try:
        await peer.ask(op="hello", id=0, protocol=1)
        return await all_bytes(peer, stream, end)
    finally:
        peer.close()


async def values(scene: ClusterScene, node: str, stream: str, end: int) -> list[int]:
    """What a reader of any replica reads that is told of this node only."""
    address = f"127.0.0.1:{scene.cluster[node].socket_port}"
    async with jetstream.connect(scene.url, socket=[address]) as through:
        reader = through.read(stream, end=end, follow=True, read_from="any")
        return [int(record.value or b"") async for record in reader]


@pytest.mark.slow("tests/simulation/test_replica_seeds.py")
def test_read_replicas_come_and_go_serve_reads_die_and_never_lead(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "live", ["a"])
            await published(js, "live", range(50))
            answer = await request(js.nats, "stream.update", name="live", read_replicas=2)
            assert sorted(answer["read_replicas"]) == ["b", "c"]
            assert answer["config"]["read_replicas"] == 2
            await published(js, "live", range(50, 100))
            await until_all_have(scene, js, "live", 100, {"b", "c"})
            expected = await bytes_at(scene, "a", "live", 100)
            for node in "bc":
                assert await bytes_at(scene, node, "live", 100) == expected

            scene.cluster["b"].kill()
            await published(js, "live", range(100, 150))
            assert await values(scene, "c", "live", 150) == list(range(150))
            scene.cluster["b"].start()
            await until_all_have(scene, js, "live", 150, {"b", "c"})
            assert await values(scene, "b", "live", 150) == list(range(150))

            answer = await request(js.nats, "stream.update", name="live", read_replicas=1)
            [left] = answer["read_replicas"]
            gone = "b" if left == "c" else "c"
            async with asyncio.timeout(WAIT_SECONDS):
                while scene.files(gone, answer["incarnation"]):
                    await pause()
            await published(js, "live", range(150, 160))
            await until_all_have(scene, js, "live", 160, {left})

            scene.cluster["a"].kill()
            await scene.until_alive(js.nats, "bc")
            info = await scene.until(js.nats, "live", lambda info: info["state"] == "offline")
            assert (info["isr"], info["leader"]) == (["a"], "a"), "nobody else is elected"
            assert await values(scene, left, "live", 160) == list(range(160))
            scene.cluster["a"].start()
            await scene.until(js.nats, "live", lambda info: info["state"] == "online")
            await published(js, "live", range(160, 170))
            await until_all_have(scene, js, "live", 170, {left})

    run(test())


def test_read_replicas_move_by_reassignment_and_leave_a_node_that_is_drained(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "moving", ["a"])
            await published(js, "moving", range(20))
            answer = await request(js.nats, "stream.reassign", name="moving", read_replicas=["b"])
            [move] = answer["moves"]
            assert (move["before"], move["after"]) == (["a"], ["a"])
            assert (move["read_replicas_before"], move["read_replicas_after"]) == ([], ["b"])
            await until_all_have(scene, js, "moving", 20, {"b"})
            moves = (await request(js.nats, "cluster.drain", node="b"))["moves"]
            [move] = [one for one in moves if one["stream"] == "moving"]
            assert move["read_replicas_after"] == ["c"]
            await until_all_have(scene, js, "moving", 20, {"c"})
            refused = await request(js.nats, "cluster.drain", node="x")
            assert refused["error"]["err_code"] == "node_not_found"

            # A read replica becomes the only replica, with what it has; the former one becomes none.
            answer = await request(js.nats, "stream.reassign", name="moving", replicas=["c"])
            assert answer["error"]["err_code"] == "invalid_config"
            await request(js.nats, "stream.reassign", name="moving", replicas=["c"], read_replicas=[])
            await scene.until(
                js.nats, "moving", lambda info: (info["state"], info["replicas"]) == ("online", ["c"])
            )
            await published(js, "moving", range(20, 30))
            assert await values(scene, "c", "moving", 30) == list(range(30))

    run(test())


def test_too_many_read_replicas_are_refused_and_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_ALIVE_NS", 0)  # nobody has just started, who could be waited for

    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("few", "few.>")
            refused = await request(js.nats, "stream.update", name="few", read_replicas=1, sync="os")
            assert refused["error"]["err_code"] == "invalid_config"
            assert refused["error"]["detail"] == {"field": "read_replicas"}
            info = await request(js.nats, "stream.info", name="few")
            assert (info["config"]["read_replicas"], info["config"]["sync"]) == (0, "always")

    run(test())


def test_a_stream_is_created_with_read_replicas_on_nodes_of_their_own(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            created = await request(
                js.nats, "stream.create", name="wide", subject="wide.>", replicas=2, read_replicas=1
            )
            assert len({*created["replicas"], *created["read_replicas"]}) == 3

    run(test())
