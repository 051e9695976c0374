"""What a node remembers of a stream's publishers, as it tells."""

from pathlib import Path

import pytest

import jetstream
from envelope.errors import UnknownStream
from envelope.partition_errors import StreamIsPartitioned
from tests.support.nodes import nats_and_node, request, run


def test_sessions_come_in_pages_of_which_none_is_left_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            names = ["b", "a\xe9", "c" * 128, "a"]
            for number, name in enumerate(names):
                async with js.session(name) as session:
                    await (await session.publish("orders.a", b"", sequence=number + 1))
            found = []
            after, more = None, True
            while more:
                page = await request(js.nats, "stream.publishers", name="orders", limit=1, after=after)
                more = page["more"]
                assert len(page["sessions"]) == 1
                found += page["sessions"]
                after = found[-1]["session"]
            in_order = sorted(names, key=str.encode)
            assert [each["session"].encode("latin-1").decode() for each in found] == in_order
            assert [each["offset"] for each in found] == [names.index(name) for name in in_order]
            told = await js.streams.publishers("orders")
            assert [each.model_dump(mode="json") for each in told.sessions] == found
            assert (told.end, told.more, told.last_txid, told.txid_set) == (4, False, None, None)

    run(scenario())


def test_txids_are_told_as_they_count_also_where_their_records_are_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.a", b"", txid=70)
            await js.streams.truncate("orders", 1)
            told = await js.streams.publishers("orders")
            assert told.last_txid is not None
            assert (told.last_txid.txid, told.last_txid.offset) == (70, 0)
            await js.streams.set_txid("orders", 5)
            told = await js.streams.publishers("orders")
            assert told.txid_set is not None
            assert (told.txid_set.txid, told.txid_set.offset) == (5, 1)
            assert told.last_txid is not None
            assert told.last_txid.offset < told.txid_set.offset, "so it does not count"

    run(scenario())


def test_it_is_asked_of_a_stream_or_of_one_partition(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", partitions=2, partition_by="key")
            assert (await js.streams.publishers("orders/1")).name == "orders/1"
            with pytest.raises(StreamIsPartitioned):
                await js.streams.publishers("orders")
            with pytest.raises(UnknownStream):
                await js.streams.publishers("absent")

    run(scenario())
