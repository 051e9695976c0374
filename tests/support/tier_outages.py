"""An object store that is away for a while, under a real node."""

import math
from collections.abc import Callable

import pytest

from envelope.errors import TierUnavailable
from tests.support.scene import Scene
from tests.support.sockets import until
from tests.support.tiered_nodes import CONFIG, RECORDS, published, read, replica

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
    await stream._services.disk.call(stream.context.upkeep.apply_retention)
    assert (stream.log.log_start_offset, stream.tiered.border) == (RECORDS, RECORDS)
    assert (await problem(scene) or "").startswith("the object store failed while "), "a while after it did"
    assert await scene.metric("jetstream_stream_tier_failing") == 1

    end()
    await scene.until("jetstream_stream_tier_failing", 0, 0)
    assert await problem(scene) is None
    await until(lambda: stream.log.log_start_offset == 2 * RECORDS)
    assert await read(js, "orders") == list(range(2 * RECORDS))
