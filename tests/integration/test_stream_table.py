"""A stream as a table: loaded, kept up to date, and gone with the stream."""

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import jetstream
from envelope.errors import InternalError, JetstreamError, RequestError
from jetstream.client.blocking.loop_thread import LoopThread
from jetstream.client.blocking.table import BlockingTable
from jetstream.client.read.reader import BatchReader
from jetstream.client.read.stream_table import StreamTable
from jetstream.log.format.schema import SCHEMA
from tests.support.nodes import nats_and_node, run
from tests.support.pauses import pause

VALUES = {b"a": b"1", b"b": b"2", b"c": b"3"}


async def filled(js: jetstream.JetstreamClient) -> None:
    """Three keys with older values, one deleted key, one record without."""
    await js.streams.create("prices", "prices.>")
    for key in ("a", "b", "gone"):
        await js.publish("prices.x", b"old", key=key)
    await js.publish("prices.x", None, key="gone")
    await js.publish("prices.x", b"nobody's")
    for last, value in VALUES.items():
        await js.publish("prices.x", value, key=last.decode(), headers={"n": "1"})


def values(table: jetstream.StreamTable) -> dict[bytes, bytes | None]:
    return {key: record.value for key, record in table.items()}


def test_a_table_holds_the_last_record_of_each_key_and_follows(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await filled(js)
            async with js.table("prices") as table:
                assert values(table) == VALUES
                assert list(table) == [b"a", b"b", b"c"]
                assert len(table) == 3
                assert table["a"].value == table[b"a"].value == b"1"
                assert table.get(b"gone") is None
                assert b"b" in table
                assert b"gone" not in table
                await js.publish("prices.x", None, key="b")
                await js.publish("prices.x", b"4", key="a")
                ack = await js.publish("prices.x", b"", key="d")
                await table.caught_up()
                assert table.next_offset == ack.offset + 1
                assert values(table) == {b"c": b"3", b"a": b"4", b"d": b""}
                assert list(table) == [b"c", b"a", b"d"], "by offset"
                as_arrow = table.to_table()
                assert as_arrow.schema == SCHEMA
                whole = await js.read_table("prices")
                wanted = pa.array([table[key].offset for key in (b"c", b"a", b"d")])
                assert as_arrow == whole.filter(pc.is_in(whole["offset"], value_set=wanted))

    run(scenario())


def test_an_empty_stream_is_an_empty_table_that_fills(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("prices", "prices.>")
            async with js.table("prices") as table:
                assert len(table) == 0
                await table.caught_up()
                assert table.to_table().num_rows == 0
                await js.publish("prices.x", b"1", key="a")
                await table.caught_up()
                assert values(table) == {b"a": b"1"}

    run(scenario())


def test_a_table_that_cannot_follow_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await filled(js)
            async with js.table("prices", retry_s=0.1) as table:
                await js.streams.delete("prices")
                await js.streams.create("prices", "prices.>")
                with pytest.raises(JetstreamError):
                    await table.caught_up()
            with pytest.raises(JetstreamError):
                async with js.table("nothing", retry_s=0.1):
                    raise AssertionError("there is no such stream")
            with pytest.raises(TypeError, match="start"):
                js.table("prices", start=3)

    run(scenario())


def test_a_table_whose_progress_callback_fails_says_so(tmp_path: Path) -> None:
    broken = False

    def tell(_: jetstream.ReadProgress) -> None:
        if broken:
            raise ZeroDivisionError

    async def scenario() -> None:
        nonlocal broken
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await filled(js)
            async with js.table("prices", progress=tell) as table:
                broken = True
                await js.publish("prices.x", b"5", key="a")
                with pytest.raises(InternalError):
                    await until_it_fails(table)
                with pytest.raises(InternalError):
                    len(table)

    run(scenario())


async def until_it_fails(table: jetstream.StreamTable) -> None:
    async with asyncio.timeout(30):
        while True:
            len(table)
            await pause()


def test_other_threads_never_see_a_batch_half_taken_in() -> None:
    table = StreamTable(no_reader)
    reader = cast("BatchReader", SimpleNamespace(last_epoch=1, next_offset=0, stream="prices"))
    keys = [b"%d" % number for number in range(50)]
    columns = {
        "offset": range(1000),
        "timestamp": [0] * 1000,
        "subject": ["s"] * 1000,
        "key": keys * 20,
        "headers": [None] * 1000,
        "txid": [None] * 1000,
        "value": [b"v"] * 1000,
    }
    batch = pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA
    )
    table._take(batch, reader)
    thread = LoopThread()
    seen = BlockingTable(thread, table)
    done = threading.Event()

    def take() -> None:
        while not done.is_set():
            table._take(batch, reader)

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    taking = threading.Thread(target=take)
    taking.start()
    try:
        for _ in range(3000):
            assert seen[b"7"].value == b"v"
            assert len(seen) == len(seen.items()) == 50
    finally:
        done.set()
        taking.join()
        thread.close(None)
        sys.setswitchinterval(switch_s)


def no_reader(start: object, *, follow: bool, incarnation: str | None) -> BatchReader:
    raise AssertionError("nothing is read")


def test_an_error_of_the_block_is_raised_as_it_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await filled(js)
            with pytest.raises(RequestError, match="mine"):
                async with js.table("prices"):
                    raise RequestError("mine")

    run(scenario())


def test_a_table_without_asyncio(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("prices", "prices.>")
            js.publish("prices.x", b"1", key="a")
            with js.table("prices") as table:
                assert {key: record.value for key, record in table.items()} == {b"a": b"1"}
                ack = js.publish("prices.x", b"2", key="a")
                js.publish("prices.x", b"3", key="b")
                table.caught_up()
                assert table["a"].offset == ack.offset
                assert b"b" in table
                assert len(table) == 2
                assert table.next_offset == 3
                assert table.to_table()["value"].to_pylist() == [b"2", b"3"]

    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            await asyncio.to_thread(scenario, url)

    run(test())
