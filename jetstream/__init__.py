"""A durable stream layer for NATS.

``jetstream.connect`` is where an application begins::

    async with jetstream.connect("nats://127.0.0.1:4222") as js:
        await js.publish("orders.new", b"...")
        async for record in js.read("orders"):
            print(record.offset, record.value)

and without asyncio::

    with jetstream.connect_blocking("nats://127.0.0.1:4222") as js:
        js.publish("orders.new", b"...")
        for record in js.read("orders"):
            print(record.offset, record.value)

The client library is imported on first use, so that the node's own modules do not load it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetstream.client.blocking import BlockingClient, connect_blocking
    from jetstream.client.connection import JetstreamClient, ReadOptions, connect
    from jetstream.client.publisher import Publisher
    from jetstream.client.publishing import PublishAck, PublishOptions
    from jetstream.client.read_progress import ReadProgress
    from jetstream.client.read_range import Txid
    from jetstream.client.reader import BatchReader, RecordReader
    from jetstream.client.records import Record

__all__ = [
    "BatchReader",
    "BlockingClient",
    "JetstreamClient",
    "PublishAck",
    "PublishOptions",
    "Publisher",
    "ReadOptions",
    "ReadProgress",
    "Record",
    "RecordReader",
    "Txid",
    "connect",
    "connect_blocking",
]

_HOMES = {
    "BatchReader": "reader",
    "BlockingClient": "blocking",
    "JetstreamClient": "connection",
    "PublishAck": "publishing",
    "PublishOptions": "publishing",
    "Publisher": "publisher",
    "ReadOptions": "connection",
    "ReadProgress": "read_progress",
    "Record": "records",
    "RecordReader": "reader",
    "Txid": "read_range",
    "connect": "connection",
    "connect_blocking": "blocking",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"jetstream.client.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
