"""A server that answers a reader with what the test has made."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, repeat

from envelope.errors import JetstreamError
from envelope.types import LeaderEpoch, Offset
from jetstream.client.nodes.socket_access import Address
from jetstream.log.format.batch import BatchFlags, encode
from jetstream.protocol.connection import RequestReceived, ServerConnection
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets
from jetstream.protocol.responses import (
    FetchResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    Response,
    StreamMetadata,
)
from metadata.node.peers.accepting import StreamServer, listeners
from tests.support.sockets import records_batch

Answer = Callable[[Fetch, int], tuple[FetchResponse, bytes]]
"""Answers a fetch at an offset."""


def a_batch(base: int, count: int, *, headers: bool = True) -> bytes:
    records = records_batch(base, [b"v"] * count, headers=headers)
    return bytes(encode(records, Offset(base), LeaderEpoch(1)).seal(BatchFlags(0)))


def a_response(fetch: Fetch, start: int, end: int) -> FetchResponse:
    return FetchResponse(
        id=fetch.id, epoch=1, schema_id=1, start_offset=start, next_offset=end, records=end - start,
        high_watermark=100, log_start_offset=0, incarnation="i",
    )  # fmt: skip


class AServer:
    """What one connection is answered; its cursor, the only one, stands at ``place``."""

    def __init__(self, answer: Answer, starts: Iterator[int], machine: str | None) -> None:
        self.machine = machine
        self.answer = answer
        self.starts = starts
        self.place = 0

    def respond(self, request: object) -> tuple[Response, bytes]:
        match request:
            case Hello(id=number):
                return HelloResponse(
                    id=number, protocol=1, node="n", node_version="0", machine=self.machine
                ), b""
            case GetMetadata(id=number):
                stream = StreamMetadata(name="s", incarnation="i", leader="n", leader_epoch=1)
                return MetadataResponse(id=number, nodes=[], streams=[stream]), b""
            case ListOffsets(id=number, at=place):
                start = next(self.starts)
                return ListOffsetsResponse(
                    id=number, offset=start if place == "earliest" else 100, leader_epoch=1,
                    log_start_offset=start, high_watermark=100, incarnation="i",
                ), b""  # fmt: skip
            case Fetch():
                return self.fetch(request)
            case _:
                raise AssertionError(request)

    def fetch(self, fetch: Fetch) -> tuple[FetchResponse, bytes]:
        offset = self.place if fetch.offset == "next" else fetch.offset
        if fetch.end is not None and offset >= fetch.end:
            return a_response(fetch, offset, offset), b""
        response, body = self.answer(fetch, offset)
        self.place = response.next_offset
        return response, body


@asynccontextmanager
async def listening(
    answer: Answer, log_starts: Sequence[int] = (0,), machine: str | None = None
) -> AsyncIterator[Address]:
    """Where a server is that answers as the test likes."""
    starts = chain(log_starts, repeat(log_starts[-1]))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection, server = ServerConnection(), AServer(answer, starts, machine)
        while data := await reader.read(1 << 16):
            for event in connection.receive_data(data):
                assert isinstance(event, RequestReceived)
                try:
                    response, body = server.respond(event.request)
                except JetstreamError as error:
                    writer.write(connection.fail(event.request.id, error))
                else:
                    writer.write(connection.respond(response, len(body)) + body)
        writer.close()

    server = StreamServer(serve, limit=1 << 16)
    (listener,) = await listeners("127.0.0.1", 0)
    server.start(listener)
    try:
        yield listener.getsockname()
    finally:
        await server.stop()
