"""Records that stay uncommitted for longer than the dedupe window: a repeat is not stored beside them."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeoutError

from tests.support.cluster_scene import ClusterScene
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, asked
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause

WINDOW_S = 1.0
AWAY = "a"
LEADER, FOLLOWER = "d", "e"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    directory = tmp_path_factory.mktemp("late")
    with NatsServer(directory / "nats") as server:
        # What a start must know is on disk before anybody looks after it.
        cluster = NodeCluster(directory, server.url, size=3, data=2, checkpoint_interval="3600")
        try:
            cluster.start()
            yield ClusterScene(cluster, server.url)
        finally:
            cluster.close()


async def publish(nats: Client, stream: str, message_id: str, payload: bytes) -> "asyncio.Future[Msg]":
    """Publish with an inbox of its own; returns where the answer will be."""
    answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    async def heard(message: Msg) -> None:
        if not answer.done():
            answer.set_result(message)

    inbox = nats.new_inbox()
    await nats.subscribe(inbox, cb=heard)
    await nats.publish(f"{stream}.x", payload, reply=inbox, headers={"Nats-Msg-Id": message_id})
    await nats.flush()
    return answer


async def until_on(nats: Client, stream: str, nodes: set[str], end: int) -> None:
    """Wait until these replicas have all that lies below ``end``."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            states = (await asked(nats, "stream.info", name=stream)).get("replica_states") or ()
            if nodes <= {state["node"] for state in states if (state["log_end_offset"] or 0) >= end}:
                return


async def until_window_is_over() -> None:
    """The window is of wall-clock time, so a clock is what is waited for."""
    over_at = time.monotonic() + 1.1 * WINDOW_S
    while time.monotonic() < over_at:
        await pause()


async def repeated(nats: Client, stream: str, message_id: str, payload: bytes) -> dict[str, object]:
    """Repeat a message until it is answered, as publishers do."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            headers = {"Nats-Msg-Id": message_id}
            try:
                reply = await nats.request(f"{stream}.x", payload, timeout=2, headers=headers)
            except (NoRespondersError, NatsTimeoutError):
                await pause()
                continue
            answer: dict[str, object] = json.loads(reply.data)
            if "error" not in answer:
                return answer


@pytest.mark.slow("tests/property/test_uncommitted_names.py", "tests/simulation/test_replica_seeds.py")
@pytest.mark.parametrize(
    "killed",
    [
        pytest.param((), id="nobody"),
        pytest.param(
            (LEADER,), id="leader", marks=pytest.mark.slow("tests/simulation/test_replica_seeds.py")
        ),
        pytest.param(
            (LEADER, FOLLOWER), id="both", marks=pytest.mark.slow("tests/simulation/test_replica_seeds.py")
        ),
    ],
)
def test_a_repeat_of_what_is_uncommitted_for_longer_than_the_window_is_stored_once(
    scene: ClusterScene, killed: tuple[str, ...]
) -> None:
    stream = f"late{len(killed)}"

    async def scenario() -> None:
        async with scene.client() as js:
            nats, cluster = js.nats, scene.cluster
            window = f"PT{WINDOW_S:.0f}S"
            names = [LEADER, FOLLOWER, AWAY]
            await scene.created(nats, stream, names, min_insync_replicas=3, dedupe_window=window)
            await scene.until(nats, stream, lambda info: info["leader"] == LEADER)
            assert (await repeated(nats, stream, "first", b"first"))["seq"] == 1
            cluster[AWAY].stand_still()
            waiting = await publish(nats, stream, "a", b"a")
            await until_on(nats, stream, {LEADER, FOLLOWER}, 2)
            await until_window_is_over()
            between = await publish(nats, stream, "b", b"b")
            again = await publish(nats, stream, "a", b"a")
            await until_on(nats, stream, {LEADER, FOLLOWER}, 3)
            await until_window_is_over()
            assert not any(each.done() for each in (waiting, between, again))
            for name in killed:
                cluster[name].kill()
            if killed == (LEADER,):
                await cluster.until_led_by_another(nats, stream, LEADER)
            for name in killed:
                cluster[name].start()
            # The one that was away lacks the record, and may lead as well as they may once it is back.
            await scene.until(
                nats,
                stream,
                lambda info: info["state"] == "online" and info["leader"] in {LEADER, FOLLOWER},
            )
            cluster[AWAY].send(signal.SIGCONT)
            answer = await repeated(nats, stream, "a", b"a")
            assert (answer["offset"], answer.get("duplicate")) == (1, True)
            answer = await repeated(nats, stream, "b", b"b")
            assert (answer["offset"], answer.get("duplicate")) == (2, True)
            if not killed:
                async with asyncio.timeout(WAIT_SECONDS):
                    told = [json.loads((await each).data) for each in (waiting, between, again)]
                assert [(each["offset"], each.get("duplicate", False)) for each in told] == [
                    (1, False),
                    (2, False),
                    (1, True),
                ]
            assert [record.value async for record in js.read(stream)] == [b"first", b"a", b"b"]
            await cluster.until_whole(nats, stream, 3)

    run(scenario())
