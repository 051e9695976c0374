"""``sync: os`` in a cluster: what a process left to the kernel is there again, what a machine lost is not.

A power loss cannot be had here: a node is killed, the end of its log is cut off, and the witness in its
directory says that its machine ran under another kernel then.
"""

from collections.abc import Iterator

import pytest

from jetstream.client.connection import JetstreamClient
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.state_file import decode_state, read_whole, write_state
from jetstream.node.disk.unsynced_marker import WITNESS_FILE
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, run

RECORDS = 40


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("unsynced")) as scene:
        yield scene


async def written(scene: ClusterScene, js: JetstreamClient, stream: str) -> str:
    """A stream on a and b whose records are acked and nobody has synced; return its incarnation."""
    await scene.created(js.nats, stream, ["a", "b"], sync="os")
    for number in range(RECORDS):
        await js.publish(f"{stream}.n", b"%d" % number, timeout=WAIT_SECONDS)
    info = await scene.until(js.nats, stream, lambda info: info["isr"] == ["a", "b"])
    return str(info["incarnation"])


def lose_power(scene: ClusterScene, node: str, incarnation: str) -> None:
    """Take from a node that was killed what a power loss may take: half of what it had not synced."""
    disk = OsDisk(scene.cluster[node].data)
    witness = decode_state(read_whole(disk, WITNESS_FILE))
    assert witness["clean"] is False
    write_state(disk, WITNESS_FILE, {**witness, "boot_id": "another"})
    disk.close()
    [directory] = scene.files(node, incarnation)
    newest = max(directory.glob("*.arrows"))
    for witness_of_a_sync in set(directory.iterdir()) - {newest}:
        witness_of_a_sync.unlink()  # on a slow machine it has rested meanwhile: as if it had not
    with newest.open("r+b") as segment:
        segment.truncate(newest.stat().st_size // 2)


async def values(js: JetstreamClient, stream: str) -> list[int]:
    return [int(record.value or b"") async for record in js.read(stream)]


def test_a_process_that_was_killed_is_still_in_sync(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await written(scene, js, "killed")
            scene.cluster["a"].kill()
            scene.cluster["b"].kill()
            scene.cluster["b"].start()
            await scene.until(js.nats, "killed", lambda info: info["leader"] == "b")
            scene.cluster["a"].start()
            info = await scene.until(js.nats, "killed", lambda info: info["state"] == "online")
            assert info["isr"] == ["a", "b"]
            assert await values(js, "killed") == list(range(RECORDS))

    run(test())


@pytest.mark.slow(
    "tests/crash/test_unsynced_witness.py::test_a_killed_process_and_a_clean_stop_keep_everything",
    "tests/unit/metadata/test_catalog_nodes.py::test_who_may_have_lost_what_it_never_synced_leaves_the_isr",
    "tests/integration/test_unsynced_tails.py::test_a_process_that_was_killed_is_still_in_sync",
)
def test_a_node_that_stopped_cleanly_is_in_sync_under_any_kernel(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await written(scene, js, "stopped")
            assert scene.cluster["b"].stop() == 0
            disk = OsDisk(scene.cluster["b"].data)
            witness = decode_state(read_whole(disk, WITNESS_FILE))
            assert witness["clean"] is True
            write_state(disk, WITNESS_FILE, {**witness, "boot_id": "another"})
            disk.close()
            scene.cluster["a"].kill()
            scene.cluster["b"].start()
            await scene.until(js.nats, "stopped", lambda info: info["leader"] == "b")
            scene.cluster["a"].start()
            await scene.until(js.nats, "stopped", lambda info: info["state"] == "online")
            assert await values(js, "stopped") == list(range(RECORDS))

    run(test())


@pytest.mark.slow(
    "tests/unit/replica/test_loss_scenarios.py",
    "tests/integration/test_unsynced_tails.py::test_a_process_that_was_killed_is_still_in_sync",
)
def test_who_may_have_lost_its_tail_waits_for_who_has_it(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            incarnation = await written(scene, js, "tail")
            scene.cluster["a"].kill()
            scene.cluster["b"].kill()
            lose_power(scene, "b", incarnation)
            scene.cluster["b"].start()
            await scene.until_alive(js.nats, "bc")
            info = await scene.until(js.nats, "tail", lambda info: info["isr"] == ["a"])
            assert info["leader"] in ("a", None), "b is alive, and is not elected"
            scene.cluster["a"].start()
            info = await scene.until(js.nats, "tail", lambda info: info["isr"] == ["a", "b"])
            assert info["leader"] == "a"
            assert await values(js, "tail") == list(range(RECORDS)), "nothing that was acked is lost"

    run(test())


@pytest.mark.slow(
    "tests/unit/replica/test_loss_scenarios.py::test_d2_kip101_s2_divergence_after_double_hard_failure",
    "tests/integration/test_unsynced_tails.py::test_a_process_that_was_killed_is_still_in_sync",
)
def test_the_last_one_standing_comes_back_with_what_it_has(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            incarnation = await written(scene, js, "last")
            scene.cluster["a"].kill()
            scene.cluster["b"].kill()
            lose_power(scene, "a", incarnation)
            lose_power(scene, "b", incarnation)
            scene.cluster["b"].start()
            await scene.until(js.nats, "last", lambda info: info["isr"] == ["a"])
            scene.cluster["a"].start()
            info = await scene.until(js.nats, "last", lambda info: info["isr"] == ["a", "b"])
            assert info["leader"] == "a"
            left = await values(js, "last")
            assert left == list(range(len(left))), "any tail may be lost, and nothing else"
            assert 0 < len(left) < RECORDS
            await js.publish("last.n", b"more", timeout=WAIT_SECONDS)

    run(test())
