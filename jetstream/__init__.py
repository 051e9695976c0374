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
    from jetstream.client.batch_publisher import BatchPublisher, RecordAck
    from jetstream.client.blocking import BlockingClient, connect_blocking
    from jetstream.client.blocking_consumer import BlockingConsumer
    from jetstream.client.blocking_session import BlockingSession
    from jetstream.client.blocking_table import BlockingTable
    from jetstream.client.connection import JetstreamClient, ReadOptions, connect
    from jetstream.client.consume_options import ConsumeOptions
    from jetstream.client.consumer import Consumer
    from jetstream.client.cursors import Cursors
    from jetstream.client.groups import Groups
    from jetstream.client.publisher import Publisher
    from jetstream.client.publishing import PublishAck, PublishOptions
    from jetstream.client.publishing_client import BatchOptions
    from jetstream.client.read_progress import ReadProgress
    from jetstream.client.read_range import Txid
    from jetstream.client.reader import BatchReader, RecordReader
    from jetstream.client.records import Record
    from jetstream.client.session_messages import SessionAck, SessionOptions
    from jetstream.client.session_publisher import SessionPublisher
    from jetstream.client.stream_table import StreamTable

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
]

_HOMES = {
    "BatchOptions": "publishing_client",
    "BatchPublisher": "batch_publisher",
    "BatchReader": "reader",
    "BlockingClient": "blocking",
    "BlockingConsumer": "blocking_consumer",
    "BlockingSession": "blocking_session",
    "BlockingTable": "stream_table",
    "ConsumeOptions": "consume_options",
    "Consumer": "consumer",
    "Cursors": "cursors",
    "Groups": "groups",
    "JetstreamClient": "connection",
    "PublishAck": "publishing",
    "PublishOptions": "publishing",
    "Publisher": "publisher",
    "ReadOptions": "connection",
    "ReadProgress": "read_progress",
    "Record": "records",
    "RecordAck": "batch_publisher",
    "RecordReader": "reader",
    "SessionAck": "session_messages",
    "SessionOptions": "session_messages",
    "SessionPublisher": "session_publisher",
    "StreamTable": "stream_table",
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
