"""What a node in this process answers on its HTTP port."""

import asyncio
import ssl
from http import HTTPStatus

from prometheus_client.parser import text_string_to_metric_families

from jetstream.node.node import Node


async def exchange(node: Node, data: bytes, tls: ssl.SSLContext | None = None) -> tuple[int, bytes, bytes]:
    """Send raw bytes; return status, head and body of the answer."""
    assert node.http_address is not None
    reader, writer = await asyncio.open_connection(*node.http_address, ssl=tls)
    try:
        writer.write(data)
        if writer.can_write_eof():
            writer.write_eof()  # the server closes behind its answer, then
        await writer.drain()
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ", 2)[1]) if head else 0, head, body


async def get(node: Node, path: str, *headers: str, tls: ssl.SSLContext | None = None) -> tuple[int, bytes]:
    lines = "\r\n".join((f"GET {path} HTTP/1.1", "Host: localhost", "Connection: close", *headers, "", ""))
    status, _, body = await exchange(node, lines.encode(), tls)
    return status, body


async def metrics(node: Node) -> dict[tuple[str, tuple[str, ...]], float]:
    """Scrape; return values by name and label values, these in the order of the labels' names."""
    status, body = await get(node, "/metrics")
    assert status == HTTPStatus.OK
    families = text_string_to_metric_families(body.decode())
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }
