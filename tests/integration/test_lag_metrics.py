"""The lag of groups and of followers, as a node's metrics tell it."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from tests.support.clocks import WrongClock
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, nats_and_node, request, run
from tests.support.pauses import pause
from tests.support.scraping import metrics

MINUTE_US = 60_000_000


def test_the_lag_of_a_group_in_seconds_is_the_age_of_the_first_record_that_it_has_to_read(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        clock = WrongClock()
        async with (
            nats_and_node(tmp_path, clock, http={"port": 0}) as (url, node),
            await nats.connect(url) as client,
        ):
            await request(client, "stream.create", name="orders", subject="orders.>")
            for _ in range(3):
                await client.jetstream().publish("orders.new", b"v")
                clock.passed_us += MINUTE_US
            minutes = []
            for offset in range(4):
                place = {"stream": "orders", "offset": offset}
                await request(client, "group.reset", group="team", cursors=[place])
                seconds = (await metrics(node))["jetstream_group_lag_seconds", ("team", "orders")]
                minutes.append(seconds / 60)
            assert minutes == [pytest.approx(age, abs=0.5) for age in (3, 2, 1, 0)]
            assert minutes[3] == 0

    run(scenario())


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("lag")) as started:
        yield started


def test_the_leader_tells_how_far_each_follower_is_behind(scene: ClusterScene) -> None:
    def lag(node: str, follower: str, unit: str) -> float | None:
        found = scene.cluster[node].metrics()
        return found.get(f'jetstream_replica_lag_{unit}{{replica="{follower}",stream="orders"}}')

    async def scenario() -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "orders", ["a", "b", "c"])
            await js.publish("orders.new", b"0")
            leader = (await js.streams.info("orders")).leader
            assert leader is not None
            going_on, frozen = sorted({"a", "b", "c"} - {leader})

            async def until_behind(by: int) -> None:
                async with asyncio.timeout(WAIT_SECONDS):
                    while (lag(leader, going_on, "records"), lag(leader, frozen, "records")) != (0, by):
                        await pause()

            await until_behind(0)
            count = 'jetstream_publish_stage_seconds_count{stage="committed"}'
            assert scene.cluster[leader].metric(count) == 1
            assert scene.cluster[going_on].metric(count) == 0
            assert (lag(leader, going_on, "seconds"), lag(leader, frozen, "seconds")) == (0, 0)
            assert lag(going_on, frozen, "records") is None
            scene.cluster[frozen].stand_still()
            for _ in range(3):
                await js.nats.publish("orders.new", b"v")
            await until_behind(3)
            assert (lag(leader, frozen, "seconds") or 0) > 0
            scene.cluster[frozen].send(signal.SIGCONT)
            await until_behind(0)
            assert lag(leader, frozen, "seconds") == 0

    run(scenario())


def test_one_node_tells_the_lag_of_a_group_whoever_leads_the_stream(scene: ClusterScene) -> None:
    def lags(stream: str) -> list[float]:
        name = f'jetstream_group_lag_records{{group="team",stream="{stream}"}}'
        found = [node.metrics() for node in scene.cluster.nodes.values()]
        return [numbers[name] for numbers in found if name in numbers]

    async def scenario() -> None:
        async with scene.client() as js:
            everywhere, elsewhere = "everywhere", [f"only-{node}" for node in "abc"]
            await scene.created(js.nats, everywhere, ["a", "b", "c"])
            for stream, node in zip(elsewhere, "abc", strict=True):
                await scene.created(js.nats, stream, [node])
            for stream in (everywhere, *elsewhere):
                await js.publish_all([(f"{stream}.new", b"v")] * 5)
            await js.groups.reset("team", 2, streams=[everywhere, *elsewhere])
            async with asyncio.timeout(WAIT_SECONDS):
                while lags(everywhere) != [3]:
                    await pause()
            assert sorted(map(lags, elsewhere)) == [[], [], [3]]

    run(scenario())
