"""A node that is stopped while the catalogue has something for it to do."""

import asyncio
from pathlib import Path

import nats

from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.nodes import node_config, run


def test_a_node_is_stopped_at_any_turn_of_the_creation_of_a_stream(tmp_path: Path) -> None:
    """A replica that was about to record its log did so again and again, and the node did not end."""

    async def scenario() -> None:
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            await nats.connect(server.url) as client,
        ):
            for turns in range(30):
                async with Node(node_config(tmp_path / str(turns), server.url)):
                    await client.publish(
                        "jetstream.api.stream.create", b'{"name":"orders","subject":"orders.>"}'
                    )
                    await client.flush()
                    for _ in range(turns):
                        await asyncio.sleep(0)

    run(scenario())
