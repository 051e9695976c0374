"""Lower retention and truncation free the disk, also of what the active segment holds."""

import asyncio
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from envelope.limits import KIB, MIB
from tests.support.nodes import WAIT_SECONDS, nats_and_node, request, run
from tests.support.pauses import pause

VALUE = b"v" * (16 * KIB)


async def publish(client: Client, count: int) -> None:
    js = client.jetstream()
    for _ in range(count):
        await js.publish("numbers.one", VALUE)


def stored_bytes(data: Path) -> int:
    """Return what the segment files of the stream's one log take on the disk."""
    found = [path for path in data.rglob("*.arrows") if "numbers" in str(path)]
    assert found
    return sum(path.stat().st_size for path in found)


@pytest.mark.parametrize("limit", [{"bytes": 256 * KIB}, {"messages": 16}])
def test_a_lower_retention_frees_what_the_active_segment_holds(tmp_path: Path, limit: dict[str, int]) -> None:
    """The stream has the default size of segments, of which all its records are a small part."""

    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, maintenance_interval=0.02) as (url, _),
            await nats.connect(url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            await publish(client, 320)
            before = stored_bytes(tmp_path)
            assert before > 5 * MIB
            await request(client, "stream.update", name="numbers", retention=limit)
            async with asyncio.timeout(WAIT_SECONDS):
                while stored_bytes(tmp_path) > before / 2:
                    await publish(client, 1)
                    await pause()
            info = await request(client, "stream.info", name="numbers")
            assert info["log_start_offset"] >= 320
            assert info["high_watermark"] - info["log_start_offset"] >= 16, "what is to be kept is"

    run(scenario())


def test_truncation_says_what_it_has_freed_and_from_which_start_on_more_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="numbers", subject="numbers.>", segment_bytes=4 * MIB)
            await publish(client, 100)
            before = stored_bytes(tmp_path)
            done = await request(client, "stream.truncate", name="numbers", before=90)
            assert (done["log_start_offset"], done["freed_bytes"], done["frees_more_at"]) == (90, 0, 100)
            await publish(client, 5)
            done = await request(client, "stream.truncate", name="numbers", before=done["frees_more_at"])
            assert done["freed_bytes"] >= before
            assert done["frees_more_at"] is None
            assert stored_bytes(tmp_path) < before / 10
            done = await request(client, "stream.truncate", name="numbers", before=105)
            assert (done["log_start_offset"], done["frees_more_at"]) == (105, None)
            assert stored_bytes(tmp_path) == 0

    run(scenario())
