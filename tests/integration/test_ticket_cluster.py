"""Tickets on three nodes: keys that are rotated and revoked under readers, a leader that is killed."""

import asyncio
import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

import jetstream
from jetstream import JetstreamClient
from metadata.api.ticket_responses import RotateKeyResponse, TicketResponse
from tests.support.moved_clock import move_clock
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause
from tests.support.sockets import RawPeer

READERS = 50
SOCKET = 'require = "ticket"\nticket_lifetime = 2\nticket_grace = 5'


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeCluster, str]]:
    directory = tmp_path_factory.mktemp("tickets")
    with NatsServer(directory / "nats") as server:
        nodes = NodeCluster(directory, server.url, socket=SOCKET)
        nodes.start()
        try:
            yield nodes, server.url
        finally:
            nodes.close()


async def rotate(js: JetstreamClient, *, revoke: bool) -> None:
    await js.requests.ask("cluster.rotate_key", {"revoke": revoke}, RotateKeyResponse)


async def hello(nodes: NodeCluster, node: str, ticket: str) -> dict[str, object]:
    peer = RawPeer(nodes[node].socket_port)
    try:
        return await peer.ask(op="hello", id=0, protocol=1, ticket=ticket)
    finally:
        peer.close()


async def until_taken(nodes: NodeCluster, ticket: str) -> None:
    """Wait until every node takes a ticket: they hear of its key one after the other."""
    async with asyncio.timeout(WAIT_SECONDS):
        for node in nodes.nodes:
            while "error" in await hello(nodes, node, ticket):
                await pause()


def test_fifty_readers_go_on_while_keys_are_rotated_and_a_leader_is_killed(
    cluster: tuple[NodeCluster, str],
) -> None:
    """Each has a ticket of its own, for its subject, and gets every message on it once and in order."""
    nodes, url = cluster
    seen: list[list[int]] = [[] for _ in range(READERS)]

    async def follow(js: JetstreamClient, number: int) -> None:
        async for record in js.read("s", subject=f"s.{number}", follow=True):
            assert record.subject == f"s.{number}"
            assert record.value is not None
            seen[number].append(int(record.value))

    async def until_seen(rounds: int) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while any(len(each) < rounds for each in seen):
                await pause()

    async def scenario() -> None:
        async with (
            jetstream.connect(url) as owner,
            jetstream.connect(url) as js,
            asyncio.TaskGroup() as tasks,
        ):
            await nodes.until_ready(owner.nats)
            await owner.streams.create("s", "s.>", replicas=3)
            await nodes.until_whole(owner.nats, "s", 3)
            readers = [tasks.create_task(follow(js, number)) for number in range(READERS)]
            rounds = count(1)

            async def publish_round() -> int:
                turn = next(rounds)
                subjects = [f"s.{number}" for number in range(READERS)]
                sent = (
                    owner.publish(subject, b"%d" % turn, message_id=f"{subject}/{turn}", timeout=WAIT_SECONDS)
                    for subject in subjects
                )
                await asyncio.gather(*sent)
                return turn

            await until_seen(await publish_round())
            for revoke in (False, True, False):
                await rotate(owner, revoke=revoke)
                await until_seen(await publish_round())
            leader = (await nodes.until_whole(owner.nats, "s", 3))["leader"]
            nodes[leader].kill()
            await nodes.until_taken_over(owner.nats, "s", leader)
            await rotate(owner, revoke=True)
            turn = await publish_round()
            await until_seen(turn)
            nodes[leader].start()
            assert not [reader for reader in readers if reader.done()]
            for reader in readers:
                reader.cancel()
        assert seen == [list(range(1, turn + 1))] * READERS

    run(scenario())


def test_a_ticket_of_a_key_that_was_revoked_is_refused_by_every_node(
    cluster: tuple[NodeCluster, str],
) -> None:
    nodes, url = cluster

    async def scenario() -> None:
        async with jetstream.connect(url) as js:
            await nodes.until_ready(js.nats)
            for revoke in (True, False):  # by two rotations, as by one that revokes
                old = (await js.requests.ask("read", {"stream": "s"}, TicketResponse)).ticket
                await until_taken(nodes, old)
                await rotate(js, revoke=revoke)
                if not revoke:
                    newer = await js.requests.ask("read", {"stream": "s"}, TicketResponse)
                    await until_taken(nodes, newer.ticket)
                    for node in nodes.nodes:
                        assert "error" not in await hello(nodes, node, old), "the key before is good"
                    await rotate(js, revoke=False)
                async with asyncio.timeout(WAIT_SECONDS):
                    for node in nodes.nodes:  # which hear of the key one after the other
                        while "error" not in (answer := await hello(nodes, node, old)):
                            await pause()
                        error = answer["error"]
                        assert isinstance(error, dict)
                        assert error["err_code"] == "invalid_ticket"

    run(scenario())


def test_a_ticket_is_good_at_nodes_whose_clocks_differ_by_five_minutes(tmp_path: Path) -> None:
    """With the default times: the node that gives it out may be the one behind, or the one ahead."""

    async def scenario(nodes: NodeCluster, url: str) -> None:
        async with jetstream.connect(url) as js:
            await nodes.until_ready(js.nats)
            for node in ("a", "b", "c"):
                name = await js.nats.request(f"jetstream.api.node.{node}.read.s", b"", timeout=WAIT_SECONDS)
                ticket = json.loads(name.data)["ticket"]
                await until_taken(nodes, ticket)

    with NatsServer(tmp_path / "nats") as server:
        nodes = NodeCluster(tmp_path, server.url, socket='require = "ticket"')
        for node, ahead_s in (("a", 150), ("b", -150)):
            nodes[node].clock = tmp_path / f"clock-{node}"
            move_clock(tmp_path / f"clock-{node}", ahead_s)
        nodes.start()
        try:
            run(scenario(nodes, server.url))
        finally:
            nodes.close()
