"""Requests to the HTTP port of a node, with the standard library's client."""

import asyncio
import http.client
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from jetstream.node.node import Node


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A response; names of headers in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        document: dict[str, Any] = json.loads(self.body)
        return document

    def lines(self) -> list[dict[str, Any]]:
        """The body as JSON lines."""
        return [json.loads(line) for line in self.body.splitlines()]

    def table(self) -> pa.Table:
        """The body as an Arrow stream, read to its end marker."""
        return pa.ipc.open_stream(self.body).read_all()


def http_get(
    address: tuple[str, int], target: str, headers: Mapping[str, str] | None = None, method: str = "GET"
) -> HttpAnswer:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request(method, target, headers=dict(headers or {}))
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return HttpAnswer(response.status, found, response.read())
    finally:
        connection.close()


async def ask(node: Node, target: str, method: str = "GET", **headers: str) -> HttpAnswer:
    """One request to a node of this process; ``if_none_match`` is the header If-None-Match."""
    assert node.http_address is not None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await asyncio.to_thread(http_get, node.http_address, target, named, method)


@asynccontextmanager
async def raw_exchange(
    node: Node, *lines: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection on which a request has been sent; the block reads as much of the response as it likes."""
    assert node.http_address is not None
    reader, writer = await asyncio.open_connection(*node.http_address)
    try:
        writer.write("\r\n".join((*lines, "", "")).encode())
        yield reader, writer
    finally:
        writer.close()
