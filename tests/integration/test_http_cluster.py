"""Records of a cluster over HTTP: any node knows the way, and a reader that follows outlives a failover."""

import asyncio
import json
from collections.abc import Iterator
from http import HTTPStatus

import pytest

import jetstream
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.http_reading import HttpAnswer, http_get
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause

RECORDS = 20


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("http")) as scene:
        yield scene


async def asked(scene: ClusterScene, node: str, target: str, **headers: str) -> HttpAnswer:
    address = ("127.0.0.1", scene.cluster[node].http_port)
    return await asyncio.to_thread(http_get, address, target, headers)


async def stored(scene: ClusterScene, js: jetstream.JetstreamClient, name: str) -> tuple[str, list[str]]:
    """A stream on all nodes with some records; its leader, and the others."""
    await js.streams.create(name, f"{name}.>", replicas=3)
    info = await scene.cluster.until_whole(js.nats, name)
    for number in range(RECORDS):
        await js.publish(f"{name}.a", str(number).encode())
    leader = str(info["leader"])
    return leader, [node for node in "abc" if node != leader]


def test_a_node_that_does_not_lead_the_stream_sends_readers_to_the_one_that_does(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            leader, (other, _) = await stored(scene, js, "sent")
            target = "/v1/streams/sent/records?from=-3&columns=value"
            answer = await asked(scene, other, target)
            assert answer.status == HTTPStatus.TEMPORARY_REDIRECT
            address = f"http://127.0.0.1:{scene.cluster[leader].http_port}"
            assert answer.headers["location"] == address + target
            there = await asked(scene, leader, target)
            assert [line["value"] for line in there.lines()] == ["17", "18", "19"]
            assert (await asked(scene, other, "/v1/streams/sent/records/3/value")).body == b"3"
            info = (await asked(scene, other, "/v1/streams/sent")).json()
            assert info["leader"] == leader, "questions are answered by every node"

    run(test())


def test_a_replica_serves_itself_the_ranges_that_it_knows_to_be_committed(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            _, others = await stored(scene, js, "known")
            for node in others:
                async with asyncio.timeout(WAIT_SECONDS):  # it hears of what is committed a moment later
                    while True:
                        answer = await asked(scene, node, f"/v1/streams/known/records?from=5&to={RECORDS}")
                        if answer.status == HTTPStatus.OK:
                            break
                        assert answer.status == HTTPStatus.TEMPORARY_REDIRECT
                        await pause()
                assert [line["offset"] for line in answer.lines()] == list(range(5, RECORDS))

    run(test())


def test_a_reader_that_follows_goes_on_at_the_next_leader(scene: ClusterScene) -> None:
    """An EventSource does so by itself: it sends the id of the last event that it has."""

    async def test() -> None:
        async with scene.client() as js:
            leader, _ = await stored(scene, js, "events")
            seen: list[int] = []
            reader, writer = await follow(scene, leader, "events", None)
            while len(seen) < RECORDS:
                seen.append(await next_event(reader))
            scene.cluster[leader].kill()
            assert (await reader.read()).strip() == b"", "nothing was sent that is not committed"
            writer.close()
            await scene.cluster.until_taken_over(js.nats, "events", leader)
            successor = str((await scene.cluster.info(js.nats, "events"))["leader"])
            reader, writer = await follow(scene, successor, "events", seen[-1])
            for number in range(RECORDS, 2 * RECORDS):
                await js.publish("events.a", str(number).encode())
                seen.append(await next_event(reader))
            writer.close()
            assert seen == list(range(2 * RECORDS))
            scene.cluster[leader].start()
            await scene.cluster.until_whole(js.nats, "events")

    run(test())


def test_a_followed_response_that_cannot_go_on_here_says_where_to_go_on(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            leader, _ = await stored(scene, js, "deleted")
            port = scene.cluster[leader].http_port
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /v1/streams/deleted/records?follow=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b'"value":"19"}\n')
            await js.streams.delete("deleted")
            last = await reader.readuntil(b"jetstream-error: stream_not_found\r\n\r\n")
            assert b"0\r\njetstream-next-offset: 20\r\n" in last
            writer.close()

    run(test())


async def follow(
    scene: ClusterScene, node: str, stream: str, last: int | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", scene.cluster[node].http_port)
    resumed = "" if last is None else f"Last-Event-ID: {last}\r\n"
    target = f"/v1/streams/{stream}/records?follow=true&format=events"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{resumed}\r\n".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    return reader, writer


async def next_event(reader: asyncio.StreamReader) -> int:
    async with asyncio.timeout(WAIT_SECONDS):
        event = await reader.readuntil(b"\ndata: ")
        offset = int(event.rpartition(b"id: ")[2].partition(b"\n")[0])
        document = json.loads(await reader.readline())
        assert (document["offset"], document["value"]) == (offset, str(offset))
        return offset
