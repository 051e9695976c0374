"""An object store that is away for a while: nothing is dropped meanwhile, and uploads go on by themselves."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from envelope.errors import TierUnavailable
from tests.integration.test_tiers import CONFIG, RECORDS, published, read, replica
from tests.support.nodes import run
from tests.support.s3_server import s3_server
from tests.support.scene import Scene, a_scene
from tests.support.sockets import until
from tests.support.tcp_proxy import proxied

FAILED = {"event": "upload_failed"}


async def problem(scene: Scene) -> str | None:
    """Why uploads fail, as an operator is told."""
    info = await scene.js.streams.info("orders")
    assert info.tier is not None
    return info.tier.problem


async def check_outage(
    scene: Scene, begin: Callable[[], None], end: Callable[[], None], failures: int
) -> None:
    """Upload, have an outage while more is published, and be none the worse for it."""
    js = scene.js
    await js.streams.create("orders", "orders.>", **CONFIG)
    await published(js, "orders", range(RECORDS))
    stream = replica(scene.node, "orders")
    await until(lambda: stream.log.log_start_offset == RECORDS)
    assert await problem(scene) is None
    assert await scene.metric("jetstream_stream_tier_failing") == 0
    assert await scene.metric("jetstream_tier_objects_total", **FAILED) == 0

    begin()
    await published(js, "orders", range(RECORDS, 2 * RECORDS))
    await scene.until("jetstream_tier_objects_total", failures, math.inf, **FAILED)
    assert await read(js, "orders", start=RECORDS) == list(range(RECORDS, 2 * RECORDS))
    with pytest.raises(TierUnavailable, match="offsets 0 to "):
        await read(js, "orders", start=0, retry_s=0.0)
    await stream._services.disk.call(stream.upkeep.apply_retention)
    assert (stream.log.log_start_offset, stream.tiered.border) == (RECORDS, RECORDS)
    assert (await problem(scene) or "").startswith("the object store failed while "), "a while after it did"
    assert await scene.metric("jetstream_stream_tier_failing") == 1

    end()
    await scene.until("jetstream_stream_tier_failing", 0, 0)
    assert await problem(scene) is None
    await until(lambda: stream.log.log_start_offset == 2 * RECORDS)
    assert await read(js, "orders") == list(range(2 * RECORDS))


def test_a_folder_that_is_away_for_a_while(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"

    def begin() -> None:
        store.rename(away)
        store.write_text("a file where the folder was")

    def end() -> None:
        store.unlink()
        away.rename(store)

    async def scenario() -> None:
        async with a_scene(tmp_path, maintenance_interval=0.05, tier=str(store)) as scene:
            await check_outage(scene, begin, end, failures=2)

    run(scenario())


@pytest.mark.deep
def test_an_s3_server_that_cannot_be_reached_for_a_while(tmp_path: Path) -> None:
    """Deep, because Arrow itself tries to connect for six seconds before it says that it cannot."""

    async def scenario() -> None:
        with s3_server() as server:
            async with (
                proxied(server.port) as proxy,
                a_scene(tmp_path, maintenance_interval=0.05, tier=server.uri("away", proxy.port)) as scene,
            ):

                def begin() -> None:
                    proxy.target = 1  # where nobody listens
                    for connection in proxy.connections:
                        connection.abort()

                def end() -> None:
                    proxy.target = server.port

                await check_outage(scene, begin, end, failures=1)

    run(scenario())
