"""What can be read of streams: asked of leaders, also where one of them stands still."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from envelope.types import Incarnation, Offset
from jetstream.client.admin import stream_ranges
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.admin.stream_ranges import range_of
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses
from jetstream.protocol.frames import PREFIX
from jetstream.protocol.requests import ListOffsets, decode_request
from jetstream.protocol.responses import (
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    NodeMetadata,
    Response,
    StreamMetadata,
    encode_response,
)
from tests.support.sockets import WAIT_SECONDS, run

_NODES = ("n1", "n2")


class ACluster:
    """Two nodes; the first leads until it is asked for offsets, and then stands still, its sockets open."""

    def __init__(self) -> None:
        self.ports: dict[str, int] = {}
        self.stands_still = False

    def response(self, node: str, header: bytes) -> Response | None:
        request = decode_request(header)
        self.stands_still |= node == "n1" and isinstance(request, ListOffsets)
        if node == "n1" and self.stands_still:
            return None
        if isinstance(request, ListOffsets):
            return ListOffsetsResponse(
                id=request.id, offset=7 if request.at == "earliest" else 50, leader_epoch=2,
                log_start_offset=7, high_watermark=50, incarnation="i", leads=True,
            )  # fmt: skip
        if request.op == "hello":
            return HelloResponse(id=request.id, protocol=1, node=node, node_version="0")
        stream = StreamMetadata(
            name="s", incarnation="i", leader=node, leader_epoch=1, replicas=list(_NODES), isr=list(_NODES)
        )
        nodes = [NodeMetadata(id=each, host="127.0.0.1", port=port) for each, port in self.ports.items()]
        return MetadataResponse(id=request.id, nodes=nodes, streams=[stream])

    @asynccontextmanager
    async def serving(self, node: str) -> AsyncIterator[None]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                while prefix := await reader.read(PREFIX.size):
                    response = self.response(node, await reader.readexactly(PREFIX.unpack(prefix)[0]))
                    if response is not None:
                        header = encode_response(response)
                        writer.write(PREFIX.pack(len(header), 0) + header)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.ports[node] = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            await server.wait_closed()


def test_a_leader_that_stands_still_is_left_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_ranges, "_ANSWER_SECONDS", 0.1)

    async def test() -> None:
        cluster = ACluster()
        async with AsyncExitStack() as stack:
            for node in _NODES:
                await stack.enter_async_context(cluster.serving(node))
            links = NodeLinks(FixedAddresses([("127.0.0.1", cluster.ports["n1"])]), 0.1)
            stack.callback(links.close)
            found = await range_of(links, "s", "earliest", WAIT_SECONDS)
            assert cluster.stands_still
            assert found == CommittedRange(Offset(7), Offset(50), Incarnation("i"))

    run(test())
