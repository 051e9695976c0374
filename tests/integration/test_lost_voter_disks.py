"""A voter whose data directory is gone comes back with an empty one, and is a voter again, on real nodes."""

import asyncio
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from jetstream.client.connection import JetstreamClient
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.node_cluster import asked
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.pauses import pause

RECORDS = 50
HAS_A_VOTE = "this voter has a vote from now on"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path) as scene:
        yield scene


async def metadata_leader(client: Client, *but: str) -> str:
    """Wait for a metadata leader that is none of these, and return it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            leader: Any = (await asked(client, "cluster.info")).get("metadata_leader")
            if leader is not None and leader not in but:
                return str(leader)


def lose_disk(scene: ClusterScene, node: str) -> None:
    scene.cluster[node].kill()
    shutil.rmtree(scene.cluster[node].data)


def health(scene: ClusterScene, node: str) -> str:
    """What a probe is told; nothing while nobody answers it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{scene.cluster[node].http_port}/healthz") as page:
            return str(page.read().decode())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.read().decode()
    except OSError:
        return ""


def starts_with_a_vote(scene: ClusterScene, node: str) -> int:
    """How many starts on an empty disk have led to a vote; that of a new cluster is the first."""
    return len(scene.logged(node, HAS_A_VOTE))


async def until_it_votes(scene: ClusterScene, js: JetstreamClient, node: str) -> None:
    """Wait until it has a vote, everything that it lost is there again, and all have heard of that."""
    async with asyncio.timeout(WAIT_SECONDS):
        while starts_with_a_vote(scene, node) < 2:
            assert scene.cluster[node].is_running, "it does not come back"
            await pause()
    await scene.cluster.until_ready(js.nats)
    await scene.cluster.until_whole(js.nats, "orders")


@pytest.mark.parametrize(
    "leads",
    [
        pytest.param(False, id="a follower"),
        pytest.param(
            True,
            id="the metadata leader",
            marks=pytest.mark.slow("tests/integration/test_lost_voter_disks.py"),
        ),
    ],
)
def test_a_voter_that_lost_its_disk_votes_again_and_is_needed(scene: ClusterScene, *, leads: bool) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "orders", ["a", "b", "c"])
            for number in range(RECORDS):
                await js.publish("orders.n", b"%d" % number, timeout=WAIT_SECONDS)
            leader = await metadata_leader(js.nats)
            victim = leader if leads else next(name for name in "abc" if name != leader)
            lose_disk(scene, victim)
            scene.cluster[victim].start()
            await until_it_votes(scene, js, victim)

            # The others are two; one of them dies, and it is their vote or that of the voter that came back.
            leader = await metadata_leader(js.nats)
            dead = leader if leader != victim else next(name for name in "abc" if name != victim)
            scene.cluster[dead].kill()
            assert await metadata_leader(js.nats, dead) in set("abc") - {dead}
            await scene.until_alive(js.nats, "".join(sorted(set("abc") - {dead})))
            await scene.created(js.nats, "behind", sorted(set("abc") - {dead}), min_insync_replicas=1)
            info = await scene.until(js.nats, "orders", lambda info: info["state"] == "online")
            assert info["high_watermark"] == RECORDS
            scene.cluster[dead].start()
            await scene.cluster.until_ready(js.nats)

    run(test())


def test_a_voter_without_a_disk_says_whom_it_waits_for_and_the_others_go_on(scene: ClusterScene) -> None:
    """Two of three have all; with one of them away nobody can tell what the lost disk had confirmed."""

    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "orders", ["a", "b", "c"])
            leader = await metadata_leader(js.nats)
            victim, other = (name for name in "abc" if name != leader)
            lose_disk(scene, victim)
            scene.cluster[other].kill()
            scene.cluster[victim].start()
            async with asyncio.timeout(WAIT_SECONDS):
                while f"until it has heard from {other}" not in health(scene, victim):
                    await pause()
            assert starts_with_a_vote(scene, victim) == 1
            scene.cluster[other].start()
            await until_it_votes(scene, js, victim)

    run(test())
