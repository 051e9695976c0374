"""Elections of who is not in sync, on real nodes: only when asked for, and loud wherever records are lost."""

import asyncio
from collections.abc import Iterator

import pytest

from jetstream.client.connection import JetstreamClient
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.commands import jetstream as command
from tests.support.nodes import WAIT_SECONDS, request, run

LOST = "jetstream_stream_committed_records_lost_total"
ELECTED = "jetstream_stream_unclean_elections_total"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("unclean")) as scene:
        yield scene


async def published(js: JetstreamClient, stream: str, numbers: range) -> None:
    for number in numbers:
        await js.publish(f"{stream}.n", b"%d" % number, timeout=WAIT_SECONDS)


async def with_a_replica_left_behind(scene: ClusterScene, js: JetstreamClient, stream: str) -> None:
    """Replicas on a and b: b has 20 records, a alone has 30, all acked; then a dies, and b is back."""
    await scene.created(js.nats, stream, ["a", "b"], min_insync_replicas=1)
    await scene.until(js.nats, stream, lambda info: info["leader"] == "a")
    await published(js, stream, range(20))
    scene.cluster["b"].kill()
    await scene.until(js.nats, stream, lambda info: info["isr"] == ["a"])
    await published(js, stream, range(20, 30))
    answer = await request(js.nats, "stream.elect", name=stream, node="b", unclean=True)
    assert answer["error"]["err_code"] == "stream_has_leader"
    scene.cluster["a"].kill()
    scene.cluster["b"].start()
    await scene.until_alive(js.nats, "bc")


def elected(*arguments: str, nats: str) -> str:
    """Run the command until the lease of whoever led has run out; return what it prints."""
    while "has not run out yet" in (result := command(*arguments, nats=nats)).output:
        pass  # it asks the metadata leader each time
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow(
    "tests/unit/metadata/test_unclean_elections.py",
    "tests/simulation/test_replica_seeds.py",
)
def test_an_operator_elects_and_everybody_is_told_what_is_lost(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await with_a_replica_left_behind(scene, js, "ordered")
            info = await scene.until(js.nats, "ordered", lambda info: info["state"] == "offline")
            assert info["last_unclean_election"] is None
            refused = await request(js.nats, "stream.elect", name="ordered", node="c", unclean=True)
            assert refused["error"]["err_code"] == "not_replica"
            refused = await request(js.nats, "stream.elect", name="ordered", node="a", unclean=True)
            assert refused["error"]["err_code"] == "unavailable", "it is dead"
            refused = await request(js.nats, "stream.elect", name="ordered", node="b", unclean=False)
            assert refused["error"]["err_code"] == "bad_request"

            elect = ("stream", "elect", "ordered", "--unclean", "b")
            asked = await asyncio.to_thread(command, *elect, nats=scene.url, given="n\n")
            assert asked.exit_code == 1
            assert "what there is of ordered" in asked.stdout
            done = await asyncio.to_thread(elected, *elect, "--yes", nats=scene.url)
            assert "b leads ordered in epoch" in done
            assert "given up: a" in done
            await scene.until(js.nats, "ordered", lambda info: info["state"] == "online")
            await published(js, "ordered", range(100, 105))
            info = await request(js.nats, "stream.info", name="ordered")
            assert (info["leader"], info["high_watermark"]) == ("b", 25)
            told = info["last_unclean_election"]
            assert (told["leader"], told["from_offset"], told["given_up"]) == ("b", 20, ["a"])
            assert told["at"] is not None
            assert [gap["kind"] for gap in info["possible_gaps"]][-1] == "unclean_election"
            assert scene.metric("b", ELECTED, "ordered") == 1
            assert scene.logged("b", " ERROR ", "leads without having been in sync", "ordered", "RB-10")
            assert scene.logged("b", "is elected uncleanly", "stream=ordered") or scene.logged(
                "c", "is elected uncleanly", "stream=ordered"
            ), "the metadata leader says so"

            scene.cluster["a"].start()
            info = await scene.until(js.nats, "ordered", lambda info: info["isr"] == ["a", "b"])
            assert scene.metric("a", LOST, "ordered") == 10
            [line] = scene.logged("a", " ERROR ", "committed records lost", "stream=ordered", "RB-10")
            assert "records=10 start=20 end=30" in line
            values = [int(record.value or b"") async for record in js.read("ordered")]
            assert values == [*range(20), *range(100, 105)]

    run(test())


@pytest.mark.slow("tests/unit/metadata/test_unclean_elections.py")
def test_a_stream_that_says_so_is_led_by_whoever_is_left(scene: ClusterScene) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await with_a_replica_left_behind(scene, js, "daring")
            answer = await request(js.nats, "stream.update", name="daring", unclean_election=True)
            assert answer["config"]["unclean_election"] is True
            info = await scene.until(js.nats, "daring", lambda info: info["state"] == "online")
            assert info["leader"] == "b"
            assert info["last_unclean_election"]["from_offset"] == 20
            scene.cluster["a"].start()
            await scene.until(js.nats, "daring", lambda info: info["isr"] == ["a", "b"])

    run(test())


@pytest.mark.slow("tests/unit/metadata/test_unclean_elections.py")
def test_a_read_replica_leads_if_an_operator_says_so_and_changes_places_with_who_was_in_sync(
    scene: ClusterScene,
) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "thin", ["a"], unclean_election=True)
            await published(js, "thin", range(10))
            await request(js.nats, "stream.reassign", name="thin", read_replicas=["b"])
            await scene.until(
                js.nats,
                "thin",
                lambda info: [s["high_watermark"] for s in info["replica_states"]] == [10, 10],
            )
            scene.cluster["a"].kill()
            await scene.until_alive(js.nats, "bc")
            info = await scene.until(js.nats, "thin", lambda info: info["state"] == "offline")
            assert info["leader"] == "a", "a read replica is not elected by itself"
            await scene.until_elected(js.nats, "thin", "b")
            info = await scene.until(js.nats, "thin", lambda info: info["state"] == "online")
            await published(js, "thin", range(10, 15))
            assert (info["replicas"], info["isr"], info["read_replicas"]) == (["b"], ["b"], ["a"])
            scene.cluster["a"].start()
            await scene.until(
                js.nats,
                "thin",
                lambda info: [s["high_watermark"] for s in info["replica_states"]] == [15, 15],
            )
            assert scene.metric("a", LOST, "thin") == 0, "the read replica had everything"
            assert [int(record.value or b"") async for record in js.read("thin")] == list(range(15))

    run(test())
