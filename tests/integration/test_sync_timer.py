"""The timer of `sync: interval` in a running node."""

import asyncio
from pathlib import Path

import nats

from tests.support.nodes import nats_and_node, request, run


def test_a_stream_is_forced_to_disk_every_sync_interval_and_one_that_leaves_it_to_the_kernel_is_not(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        # Checkpoints force quiet streams to disk: an hour apart here, so it is the timer or nothing.
        async with (
            nats_and_node(tmp_path, checkpoint_interval=3600) as (url, node),
            await nats.connect(url) as client,
        ):
            for name, sync in (("timed", "interval"), ("kernel", "os")):
                await request(client, "stream.create", name=name, subject=name, sync=sync, sync_interval=0.05)
            logs = {name: node.stream(name) for name in ("timed", "kernel")}
            timed, kernel = logs["timed"], logs["kernel"]
            assert timed is not None
            assert kernel is not None
            for number in range(1, 4):
                for name in ("kernel", "timed"):
                    ack = await client.jetstream().publish(name, b"x")
                    assert ack.seq == number
                while timed.log.writer.durable_end < number:  # noqa: ASYNC110 - the disk thread has no event for it
                    await asyncio.sleep(0)
            assert not timed.log.writer.dirty
            assert (kernel.log.log_end_offset, kernel.log.writer.durable_end) == (3, 0)

    run(scenario())
