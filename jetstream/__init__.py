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
    from jetstream.client.admin.cursors import Cursors
    from jetstream.client.admin.groups import Groups
    from jetstream.client.blocking.client import BlockingClient, connect_blocking
    from jetstream.client.blocking.consumer import BlockingConsumer
    from jetstream.client.blocking.session import BlockingSession
    from jetstream.client.blocking.table import BlockingTable
    from jetstream.client.connection import JetstreamClient, ReadOptions, connect
    from jetstream.client.consume.consumer import Consumer
    from jetstream.client.consume.options import ConsumeOptions
    from jetstream.client.publish.batch_publisher import BatchPublisher, RecordAck
    from jetstream.client.publish.client import BatchOptions
    from jetstream.client.publish.messages import PublishAck, PublishOptions
    from jetstream.client.publish.publisher import Publisher
    from jetstream.client.publish.session_messages import SessionAck, SessionOptions
    from jetstream.client.publish.session_publisher import SessionPublisher
    from jetstream.client.read.places import Txid
    from jetstream.client.read.read_progress import ReadProgress
    from jetstream.client.read.reader import BatchReader, RecordReader
    from jetstream.client.read.records import Record
    from jetstream.client.read.stream_table import StreamTable
    from jetstream.client.tracing import disable_tracing, enable_tracing, process_span

__all__ = [
    "BatchOptions",
    "BatchPublisher",
    "BatchReader",
    "BlockingClient",
    "BlockingConsumer",
    "BlockingSession",
    "BlockingTable",
    "ConsumeOptions",
    "Consumer",
    "Cursors",
    "Groups",
    "JetstreamClient",
    "PublishAck",
    "PublishOptions",
    "Publisher",
    "ReadOptions",
    "ReadProgress",
    "Record",
    "RecordAck",
    "RecordReader",
    "SessionAck",
    "SessionOptions",
    "SessionPublisher",
    "StreamTable",
    "Txid",
    "connect",
    "connect_blocking",
    "disable_tracing",
    "enable_tracing",
    "process_span",
]

_HOMES = {
    "BatchOptions": "publish.client",
    "BatchPublisher": "publish.batch_publisher",
    "BatchReader": "read.reader",
    "BlockingClient": "blocking.client",
    "BlockingConsumer": "blocking.consumer",
    "BlockingSession": "blocking.session",
    "BlockingTable": "blocking.table",
    "ConsumeOptions": "consume.options",
    "Consumer": "consume.consumer",
    "Cursors": "admin.cursors",
    "Groups": "admin.groups",
    "JetstreamClient": "connection",
    "PublishAck": "publish.messages",
    "PublishOptions": "publish.messages",
    "Publisher": "publish.publisher",
    "ReadOptions": "connection",
    "ReadProgress": "read.read_progress",
    "Record": "read.records",
    "RecordAck": "publish.batch_publisher",
    "RecordReader": "read.reader",
    "SessionAck": "publish.session_messages",
    "SessionOptions": "publish.session_messages",
    "SessionPublisher": "publish.session_publisher",
    "StreamTable": "read.stream_table",
    "Txid": "read.places",
    "connect": "connection",
    "connect_blocking": "blocking.client",
    "disable_tracing": "tracing",
    "enable_tracing": "tracing",
    "process_span": "tracing",
}


def __getattr__(name: str) -> object:
    """Import a public name from its home on first use (PEP 562).

    Raises:
        ImportError: Python runs without assertions.
    """
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not __debug__:
        raise ImportError("jetstream does not run under python -O: its assertions guard the data")
    value: object = getattr(import_module(f"jetstream.client.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
