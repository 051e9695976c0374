"""A stream's directory is gone from a disk that is otherwise as it was: no other log is cut for it.

Nodes are killed, directories removed or emptied; nothing tells the node but the catalogue, which knows that
the stream has begun.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import nats.errors
import pytest

import jetstream
from envelope.errors import JetstreamError
from jetstream.client.connection import JetstreamClient
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, node_config, request, run
from tests.support.pauses import pause

RECORDS = 30


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("lost")) as scene:
        yield scene


async def published(js: JetstreamClient, stream: str, numbers: range) -> None:
    for number in numbers:
        await js.publish(f"{stream}.n", b"%d" % number, timeout=WAIT_SECONDS)


async def values(js: JetstreamClient, stream: str) -> list[int]:
    return [int(record.value or b"") async for record in js.read(stream)]


def emptied(directory: Path) -> None:
    """Have the directory, and nothing in it."""
    shutil.rmtree(directory)
    directory.mkdir()


def without_segments(directory: Path) -> None:
    """Keep what tells of the records, and none of them."""
    for file in (*directory.glob("*.arrows"), *directory.glob("*.index")):
        file.unlink()


@pytest.mark.parametrize(
    "loses",
    [
        shutil.rmtree,
        pytest.param(emptied, marks=pytest.mark.slow("tests/integration/test_lost_logs.py")),
        pytest.param(without_segments, marks=pytest.mark.slow("tests/integration/test_lost_logs.py")),
    ],
)
def test_after_a_power_cut_who_lost_its_log_copies_it_from_the_others(
    loses: Callable[[Path], None], scene: ClusterScene
) -> None:
    stream = f"cut-{loses.__name__}"

    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, stream, ["a", "b", "c"])
            await published(js, stream, range(RECORDS))
            await js.cursors.commit("reader", stream, 7)
            infos = [await request(js.nats, "stream.info", name=name) for name in (stream, "__cursors")]
            for node in "abc":
                scene.cluster[node].kill()
            for info in infos:
                [directory] = scene.files("a", info["incarnation"])
                loses(directory)
            scene.cluster.start("ab")  # neither leads before the other is there to vote
            await scene.until_alive(js.nats, "ab")
            info = await scene.until(js.nats, stream, lambda info: info["leader"] is not None)
            assert info["leader"] == "b"
            scene.cluster["c"].start()
            await scene.until(js.nats, stream, lambda info: info["isr"] == ["a", "b", "c"])
            info = await request(js.nats, "stream.info", name=stream)
            assert (info["blank"], info["last_unclean_election"]) == ([], None)
            assert await values(js, stream) == list(range(RECORDS))
            await scene.cluster.until_whole(js.nats, "__cursors")
            assert (await js.cursors.get("reader", stream)).offset == 7
            assert scene.logged("a", " ERROR ", "log is gone", f"stream={stream}:", "RB-13")
            assert not scene.logged("b", " ERROR ", stream)
            await published(js, stream, range(RECORDS, RECORDS + 5))

    run(test())


def test_the_only_replica_is_refused_as_lost_until_it_is_back(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            config = node_config(data, server.url)
            async with Node(config), jetstream.connect(server.url) as js:
                for name in ("lost", "other"):
                    await js.streams.create(name, f"{name}.>")
                    await published(js, name, range(3))
            [directory] = (data / "streams").glob("lost@*")
            directory.rename(kept)
            for _ in range(2):  # what the first start began anew the second would take for the log
                async with Node(config), jetstream.connect(server.url) as js:
                    info = await request(js.nats, "stream.info", name="lost")
                    assert (info["state"], info["reason_code"]) == ("offline", "stream_lost")
                    assert info["blank"] == info["isr"]
                    with pytest.raises((JetstreamError, nats.errors.Error)):
                        await js.publish("lost.n", b"3", timeout=0.5)
                    await published(js, "other", range(1))
                    assert not list((data / "streams").glob("lost@*")), "nothing is begun anew"
            kept.rename(directory)
            async with Node(config), jetstream.connect(server.url) as js:
                assert (await js.publish("lost.n", b"3")).offset == 3
                assert await values(js, "lost") == [0, 1, 2, 3]
            shutil.rmtree(directory)
            async with Node(config), jetstream.connect(server.url) as js:
                assert "error" not in await request(js.nats, "stream.delete", name="lost")
                await js.streams.create("lost", "lost.>")
                assert (await js.publish("lost.n", b"0")).offset == 0

    run(scenario())


def test_a_stream_whose_only_replica_is_lost_goes_on_when_an_operator_says_so(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "sole", ["c"])
            await published(js, "sole", range(3))
            life = (await request(js.nats, "stream.info", name="sole"))["incarnation"]
            scene.cluster["c"].kill()
            [directory] = scene.files("c", life)
            shutil.rmtree(directory)
            scene.cluster["c"].start()
            await scene.until_alive(js.nats, "abc")
            info = await scene.until(js.nats, "sole", lambda info: info["blank"] == ["c"])
            assert (info["leader"], info["isr"]) == (None, ["c"])
            async with asyncio.timeout(WAIT_SECONDS):
                while not scene.logged("c", " ERROR ", "stream lost", "stream=sole", "RB-13"):
                    await pause()
            await scene.until_elected(js.nats, "sole", "c")
            info = await scene.until(js.nats, "sole", lambda info: info["state"] == "online")
            assert (info["last_unclean_election"]["leader"], info["blank"]) == ("c", [])
            await published(js, "sole", range(1))

    run(test())
