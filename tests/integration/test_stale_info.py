"""What a leader says that has stood still while another took its place."""

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetstream
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[NodeCluster, str]]:
    with NatsServer(tmp_path / "nats") as server:
        nodes = NodeCluster(tmp_path, server.url)
        nodes.start()
        try:
            yield nodes, server.url
        finally:
            nodes.close()


def test_a_leader_that_wakes_up_does_not_tell_of_its_stream_as_if_it_led(
    cluster: tuple[NodeCluster, str],
) -> None:
    """The questions wait for it in its socket: they are the first that it reads."""
    nodes, url = cluster

    async def scenario() -> None:
        async with jetstream.connect(url) as js:
            await nodes.until_ready(js.nats)
            name = "s"
            await js.streams.create(name, f"{name}.>", replicas=3)
            leader = str((await nodes.until_whole(js.nats, name))["leader"])
            await js.publish(f"{name}.x", b"before")
            nodes[leader].stand_still()
            inbox = await js.nats.subscribe(js.nats.new_inbox())
            asked = {"stream.info": {}, "stream.truncate": {"before": 1}}
            for operation, fields in asked.items():
                subject = f"jetstream.api.node.{leader}.{operation}"
                body = json.dumps({"name": name, **fields}).encode()
                await js.nats.publish(subject, body, reply=inbox.subject)
            await nodes.until_taken_over(js.nats, name, leader)
            await js.publish(f"{name}.x", b"after", timeout=WAIT_SECONDS)
            nodes[leader].send(signal.SIGCONT)
            for _ in asked:
                told = json.loads((await inbox.next_msg(WAIT_SECONDS)).data)
                is_refused = told.get("error", {}).get("err_code") in {"stream_offline", "not_leader"}
                assert is_refused or told["leader"] != leader, told
            await nodes.until_whole(js.nats, name)
            assert [record.offset async for record in js.read(name)] == [0, 1]

    run(scenario())


def test_without_a_majority_the_info_is_what_is_known_and_says_offline(
    cluster: tuple[NodeCluster, str],
) -> None:
    nodes, url = cluster

    async def scenario() -> None:
        async with jetstream.connect(url) as js:
            await nodes.until_ready(js.nats)
            await js.streams.create("s", "s.>", replicas=3)
            leader = str((await nodes.until_whole(js.nats, "s"))["leader"])
            for node in nodes.nodes:
                if node != leader:
                    nodes[node].kill()
            async with asyncio.timeout(WAIT_SECONDS):
                while (info := await js.streams.info("s")).state == "online":
                    await pause()
            assert (info.leader, info.reason is None) == (leader, False)

    run(scenario())
