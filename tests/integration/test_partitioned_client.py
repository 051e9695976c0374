"""The client library with partitioned streams, with and without asyncio."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

import jetstream
from envelope.errors import InvalidEnvelope, RequestError, StreamExists, UnknownStream, WrongExpectedStream
from envelope.partition_errors import StreamIsPartitioned
from envelope.partitions import partition_of
from metadata.api.responses import DeletePartitionedStreamResponse, PartitionedStreamInfo
from tests.support.nodes import nats_and_node, run


def test_a_partitioned_stream_from_creation_to_deletion(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            made = await js.streams.create("orders", "orders.>", partitions=2, partition_by="key")
            assert (made.created, made.effective_partitions, made.config.partitions) == (True, 2, 2)
            again = await js.streams.create("orders", "orders.>", partitions=2, partition_by="key")
            assert not again.created
            with pytest.raises(StreamExists):
                await js.streams.create("orders", "orders.>", partitions=3, partition_by="key")
            with pytest.raises(StreamIsPartitioned):
                await js.streams.info("orders")
            assert [one.name for one in (await js.streams.partitions("orders")).partitions] == [
                "orders/0",
                "orders/1",
            ]
            assert (await js.streams.info("orders/1")).config.partition_of == "orders"
            with pytest.raises(RequestError, match="not partitioned"):
                await js.streams.partitions("orders/1")
            with pytest.raises(UnknownStream):
                await js.streams.partitions("shop")
            grown = await js.streams.update("orders", partitions=3, labels={"a": "b"})
            assert isinstance(grown, PartitionedStreamInfo)
            assert (grown.effective_partitions, grown.config.labels) == (3, {"a": "b"})
            gone = await js.streams.delete("orders")
            assert isinstance(gone, DeletePartitionedStreamResponse)
            assert len(gone.partitions) == 3
            assert await js.streams.list() == []

    run(scenario())


def test_acks_name_the_partition_and_are_awaited_by_the_name_of_the_whole(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", partitions=4, partition_by="key")
            await js.streams.create("audit", "orders.>", ack="leader")
            number = partition_of(b"k", 4)
            whole = await js.publish("orders.x", b"1", key="k", stream="orders")
            assert (whole.stream, whole.partition, whole.offset) == (f"orders/{number}", number, 0)
            both = await js.publish("orders.x", b"2", key="k", streams=["audit", "orders"])
            assert [(ack.stream, ack.partition) for ack in both] == [
                ("audit", None),
                (f"orders/{number}", number),
            ]
            exact = await js.publish("orders.x", b"3", key="k", streams=[f"orders/{number}"])
            assert [ack.offset for ack in exact] == [2]
            with pytest.raises(WrongExpectedStream):
                await js.publish("orders.x", b"4", key="k", stream=f"orders/{(number + 1) % 4}")
            async with js.session("of k", stream="orders") as session:
                sent = [await session.publish("orders.x", b"%d" % count, key="k") for count in range(20)]
                assert [(await future).offset for future in sent] == list(range(3, 23))

    run(scenario())


def test_a_table_goes_to_the_partition_of_its_one_key(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", partitions=4, partition_by="key")
            table = pa.table({"value": [b"1", b"2"], "key": [b"k", b"k"]})
            [ack] = await js.publish_batch("orders.x", table, key="k")
            assert (ack.partition, ack.count) == (partition_of(b"k", 4), 2)
            stored = [(record.key, record.value) async for record in js.read(ack.stream)]
            assert stored == [(b"k", b"1"), (b"k", b"2")]
            with pytest.raises(InvalidEnvelope, match="one key"):
                await js.publish_batch("orders.x", table)

    run(scenario())


def test_the_blocking_client_does_the_same(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            made = js.streams.create("orders", "orders.>", partitions=2, partition_by="subject")
            assert made.effective_partitions == 2
            ack = js.publish("orders.x", b"1", stream="orders")
            assert ack.partition == partition_of(b"orders.x", 2)
            assert [record.value for record in js.read(ack.stream)] == [b"1"]
            js.streams.update("orders", partitions=4)
            assert js.streams.partitions("orders").effective_partitions == 4
            js.streams.delete("orders")
            assert js.streams.list() == []

    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            await asyncio.to_thread(scenario, url)

    run(test())
