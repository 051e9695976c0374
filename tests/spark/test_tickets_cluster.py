"""A query without NATS at its executors, on three nodes, while keys of tickets are rotated and revoked."""

import asyncio
from pathlib import Path

import jetstream
from metadata.api.ticket_responses import RotateKeyResponse
from tests.conftest import StartNatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.spark_reads import Query, values_of

SOCKET = 'require = "ticket"\nticket_lifetime = 2\nticket_grace = 5'


def test_each_micro_batch_has_tickets_that_every_node_takes(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server()
    nodes = NodeCluster(tmp_path, server.url, socket=SOCKET)
    options = {
        "servers": server.url,
        "stream": "parts",
        "startingOffsets": "earliest",
        "executorNats": "false",
    }
    query = Query({**options, "subject": "parts.>", "readPreference": "any"})

    async def scenario() -> None:
        async with jetstream.connect(server.url) as js:
            await nodes.until_ready(js.nats)
            await js.streams.create("parts", "parts.>", partitions=3, partition_by="subject", replicas=3)
            for partition in range(3):
                await nodes.until_whole(js.nats, f"parts/{partition}", 3)
            seen: list[int] = []
            for turn in range(4):
                await js.publish_all(
                    (f"parts.{n}", b"%d" % n, {"timeout": WAIT_SECONDS}) for n in numbers(turn)
                )
                rows = await asyncio.to_thread(query.batch)
                assert rows is not None
                assert len({row["partition"] for row in rows}) == 3
                seen += values_of(rows)
                await js.requests.ask("cluster.rotate_key", {"revoke": turn % 2 == 0}, RotateKeyResponse)
            assert sorted(seen) == list(range(4 * 20))

    nodes.start()
    try:
        run(scenario())
    finally:
        query.close()
        nodes.close()


def numbers(turn: int) -> range:
    return range(turn * 20, turn * 20 + 20)
