"""What clients know of a stream while it is compacted: its last values, and their sessions."""

import asyncio
from pathlib import Path

import pytest

import jetstream
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.compacting_nodes import CONFIG, published
from tests.support.keyed_streams import KeyedPublisher, check_session, publish_in_session
from tests.support.nodes import WAIT_SECONDS, NodeProcess, nats_and_node, run
from tests.support.pauses import pause


def test_tables_are_what_was_acked_while_records_and_tombstones_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            nats_and_node(tmp_path, maintenance_interval=0.02) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("prices", "prices.>", **CONFIG)
            stream = node.stream("prices")
            assert stream is not None
            publisher = KeyedPublisher(js, "prices")
            async with js.table("prices") as table:
                while stream.log.compaction.purged_end < 1000:
                    for _ in range(5):
                        await publisher.turn()
                    await publisher.check(table)
                    await publisher.check_command(url)
                await until_gone(js, "prices", 1000)
                end = stream.log.log_end_offset
                assert len([record async for record in js.read("prices")]) < end / 2, "records went"
                await publisher.check(table)

    run(scenario())


async def until_gone(js: jetstream.JetstreamClient, stream: str, end: int) -> None:
    """Wait until no tombstone is left below that offset."""
    async with asyncio.timeout(WAIT_SECONDS):
        while [r async for r in js.read(stream, end=end) if r.value is None]:
            await pause()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_session_goes_on_after_a_restart_though_its_records_are_gone(
    tmp_path: Path, *, is_killed: bool
) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            process = NodeProcess(
                tmp_path / "data", server.url, JETSTREAM_NODE_MAINTENANCE_INTERVAL="PT0.02S"
            )
            process.start()
            try:
                async with jetstream.connect(server.url) as js:
                    await js.streams.create("prices", "prices.>", **CONFIG)
                    await publish_in_session(js, "prices", 30)
                    for start in range(0, 400, 100):
                        await published(js, "prices", range(start, start + 100))
                    await until_cleaned(js, "prices", 100)
                if is_killed:
                    process.kill()
                else:
                    assert process.stop() == 0
                process.start()
                async with jetstream.connect(server.url) as js:
                    await check_session(js, "prices", 30)
            finally:
                process.kill()

    run(scenario())


async def until_cleaned(js: jetstream.JetstreamClient, stream: str, end: int) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while (state := (await js.streams.info(stream)).compaction) is None or state.cleaned_end < end:
            await pause()
