"""What a node says to readers before it knows what streams there are."""

import asyncio
from pathlib import Path

import pytest

import jetstream
from envelope.errors import StreamOffline
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.node_cluster import NodeCluster
from tests.support.nodes import run
from tests.support.sockets import until


def test_a_node_that_has_heard_no_majority_does_not_say_that_a_stream_is_not_there(tmp_path: Path) -> None:
    async def check() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            cluster = NodeCluster(tmp_path, server.url)
            node = cluster["a"]
            cluster.start(["a"])
            try:
                await until(lambda: "listening for readers" in node.log.read_text())
                async with jetstream.connect(socket=f"127.0.0.1:{node.socket_port}") as js:
                    with pytest.raises(StreamOffline, match="does not know yet"):
                        await asyncio.wait_for(js.read_table("orders", retry_s=0.0), 10.0)
            finally:
                cluster.close()

    run(check())
