"""An error of ours in a stream stops the node: it must not live on with a stream that never acks."""

import asyncio
from pathlib import Path

import nats
import pytest

from jetstream.ingest.parser import MessageParser
from jetstream.log.log import Log
from jetstream.node.node import Node
from tests.support.nats_server import NatsServer
from tests.support.nodes import node_config, request, run


class OursError(Exception):
    """What no machine raises."""


def broken(*_: object) -> None:
    raise OursError


@pytest.mark.parametrize("machine", ["_ingest", "_leader"])
def test_an_error_in_a_stream_stops_the_node(
    machine: str, tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            Node(node_config(tmp_path / "data", nats_server.url)) as node,
            await nats.connect(nats_server.url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            monkeypatch.setattr(getattr(node.stream("numbers"), machine), "handle", broken)
            await client.publish("numbers.one", b"1")
            await node.wait_closed()

    with pytest.raises(OursError):
        run(scenario())


@pytest.mark.parametrize(("kind", "method"), [(MessageParser, "feed"), (Log, "append_group")])
def test_an_error_in_the_parser_or_on_the_disk_thread_stops_the_node(
    tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            Node(node_config(tmp_path / "data", nats_server.url)) as node,
            await nats.connect(nats_server.url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            monkeypatch.setattr(kind, method, broken)
            await client.publish("numbers.one", b"1")
            await node.wait_closed()

    with pytest.raises(OursError):
        run(scenario())
