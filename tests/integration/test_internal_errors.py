"""An error of ours in a stream stops the node: it must not live on with a stream that never acks."""

import asyncio
from operator import attrgetter
from pathlib import Path

import nats
import pytest

from envelope.errors import FsyncFailed
from jetstream.ingest.parser import MessageParser
from jetstream.log.writer import LogWriter
from jetstream.node.node import Node
from metadata.node.storage.file_storage import FileStorage
from tests.support.nats_server import NatsServer
from tests.support.nodes import node_config, request, run


class OursError(Exception):
    """What no machine raises."""


def broken(*_: object) -> None:
    raise OursError


@pytest.mark.parametrize(
    ("machine", "method"), [("path._ingest", "received"), ("driver._leader", "log_synced")]
)
def test_an_error_in_a_stream_stops_the_node(
    machine: str, method: str, tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            Node(node_config(tmp_path / "data", nats_server.url)) as node,
            await nats.connect(nats_server.url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            stream = node.stream("numbers")
            assert stream is not None
            monkeypatch.setattr(attrgetter(machine)(stream.leading), method, broken)
            await client.publish("numbers.one", b"1")
            await node.wait_closed()

    with pytest.raises(OursError):
        run(scenario())


@pytest.mark.parametrize(("kind", "method"), [(MessageParser, "feed"), (LogWriter, "append_group")])
def test_an_error_in_the_parser_or_on_the_disk_thread_stops_the_node(
    tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, kind: type, method: str
) -> None:
    def broken_once(*_: object) -> None:
        monkeypatch.undo()  # else the connection that is closed in order would wait for an answer
        raise OursError

    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            Node(node_config(tmp_path / "data", nats_server.url)) as node,
            await nats.connect(nats_server.url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            monkeypatch.setattr(kind, method, broken_once)
            await client.publish("numbers.one", b"1")
            await node.wait_closed()

    with pytest.raises(OursError):
        run(scenario())


@pytest.mark.parametrize("error", [OursError, FsyncFailed])
def test_a_metadata_voter_that_fails_stops_the_node_with_its_error(
    tmp_path: Path, nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fail(*_: object) -> None:
        raise error("input/output error")

    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            Node(node_config(tmp_path / "data", nats_server.url)) as node,
            await nats.connect(nats_server.url) as client,
        ):
            monkeypatch.setattr(FileStorage, "append", fail)
            await client.publish("jetstream.api.stream.create", b'{"name":"numbers","subject":"numbers.>"}')
            await node.wait_closed()

    with pytest.raises(error):
        run(scenario())
