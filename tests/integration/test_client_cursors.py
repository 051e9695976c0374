"""Cursors by the client library: typed, with and without asyncio, and where a reader begins by one."""

import asyncio
from pathlib import Path

import pytest

import jetstream
from envelope.errors import InvalidCursor, OffsetOutOfRange, StreamRecreated
from jetstream.client.blocking.client import BlockingClient
from tests.support.nodes import nats_and_node, run


def test_a_consumer_commits_reads_back_and_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            for number in range(6):
                await js.publish("orders.new", b"%d" % number)
            ack = await js.cursors.commit("a/b", "orders", 4, metadata="caf\u00e9", incarnation="1f0c")
            assert (ack.stream, ack.offset) == ("__cursors", 0), "the first commit makes the stream"
            cursor = await js.cursors.get("a/b", "orders")
            assert (cursor.offset, cursor.metadata, cursor.incarnation) == (4, "caf\u00e9", "1f0c")
            await js.cursors.commit("a/b", "orders", 4)
            cursor = await js.cursors.get("a/b", "orders")
            assert (cursor.metadata, cursor.incarnation) == (None, None)
            assert [record.offset async for record in js.read("orders", start=cursor)] == [4, 5]
            await js.cursors.delete("a/b", "orders")
            cursor = await js.cursors.get("a/b", "orders")
            assert (cursor.offset, cursor.committed_at) == (None, None)
            assert [record.offset async for record in js.read("orders", start=cursor)] == list(range(6))

    run(scenario())


def test_what_cannot_be_a_cursor_is_refused_before_it_is_published(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            for consumer, offset, metadata in (("a.b", 1, None), ("a", -1, None), ("a", 1, "x" * 1025)):
                with pytest.raises(InvalidCursor):
                    await js.cursors.commit(consumer, "orders", offset, metadata=metadata)
            with pytest.raises(InvalidCursor):
                await js.cursors.delete("a", "b.c")
            assert await js.streams.list(internal=True) == []

    run(scenario())


def test_a_list_goes_through_all_pages(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.cursors.get("c", "s")
            messages = [
                (f"jetstream.api.cursors.plain.c{each}.s{each % 2}", b"%d" % each) for each in range(600)
            ]
            await js.publish_all(messages)
            found = await js.cursors.list()
            assert sorted(each.offset or 0 for each in found) == list(range(600))
            assert len(await js.cursors.list(stream="s1")) == 300
            assert [each.offset for each in await js.cursors.list(consumer="c7")] == [7]
            assert await js.cursors.list(consumer="c7", stream="s0") == []

    run(scenario())


def test_a_cursor_whose_offset_is_gone_is_an_error_that_says_where_the_log_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            for number in range(6):
                await js.publish("orders.new", b"%d" % number)
            await js.cursors.commit("a", "orders", 1)
            await js.streams.truncate("orders", before=3)
            cursor = await js.cursors.get("a", "orders")
            with pytest.raises(OffsetOutOfRange) as refusal:
                await anext(js.read("orders", start=cursor))
            assert refusal.value.detail["log_start_offset"] == 3

    run(scenario())


def test_a_cursor_of_a_stream_that_was_created_again_is_told_apart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"1")
            reader = js.read("orders")
            async for _ in reader:
                pass
            assert reader.next_offset is not None
            await js.cursors.commit("a", "orders", reader.next_offset, incarnation=reader.incarnation)
            await js.publish("orders.new", b"2")
            cursor = await js.cursors.get("a", "orders")
            assert [record.value async for record in js.read("orders", start=cursor)] == [b"2"]
            await js.streams.delete("orders")
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"3")
            with pytest.raises(StreamRecreated):
                await anext(js.read("orders", start=cursor))

    run(scenario())


def test_a_program_without_asyncio_resumes(tmp_path: Path) -> None:
    def program(js: BlockingClient) -> None:
        js.streams.create("orders", "orders.>")
        js.publish_all([("orders.new", b"%d" % number) for number in range(6)])
        assert js.cursors.get("a", "orders").offset is None
        js.cursors.commit("a", "orders", 4, metadata="m")
        assert [record.offset for record in js.read("orders", start=js.cursors.get("a", "orders"))] == [4, 5]
        assert [(each.consumer, each.metadata) for each in js.cursors.list()] == [("a", "m")]
        js.cursors.delete("a", "orders")
        assert js.cursors.list(consumer="a") == []
        assert js.streams.list() == js.streams.list("orders")
        assert [stream.name for stream in js.streams.list(internal=True)] == ["__cursors", "orders"]

    async def scenario() -> None:

        async with nats_and_node(tmp_path) as (url, _):
            await asyncio.to_thread(with_client, url)

    def with_client(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            program(js)

    run(scenario())
