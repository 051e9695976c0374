"""Tables published in a session: each envelope is one of its messages, and stored once."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest
from nats.aio.msg import Msg

import jetstream
from envelope.errors import RequestError, StreamReadOnly, Unsupported
from jetstream import JetstreamClient, SessionAck, SessionPublisher
from jetstream.client.blocking.client import BlockingClient
from jetstream.client.publish.batch_envelopes import Filled
from jetstream.client.publish.session_messages import SessionFuture
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.nodes import nats_and_node, run
from tests.support.stream_by_hand import LostOnce, stream_by_hand

ROWS = 20_000
SIZE = 100
BATCH_BITS = 24


def table_of(count: int, first: int = 0) -> pa.Table:
    values = [b"%08d" % number + bytes(SIZE - 8) for number in range(first, first + count)]
    return pa.table({"value": pa.array(values)})


async def numbers(js: JetstreamClient) -> list[int]:
    return [int((record.value or b"")[:8]) async for record in js.read("orders")]


async def publish(
    js: JetstreamClient, table: pa.Table, first_sequence: int | None = None, *, derived: bool = True
) -> list[SessionAck]:
    async with js.session("s", derived=derived, stream="orders") as session:
        futures = await session.publish_batch("orders.new", table, first_sequence=first_sequence)
        return [await future for future in futures]


def with_node(tmp_path: Path, scenario: Callable[[JetstreamClient], Awaitable[None]]) -> None:
    async def surrounded() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await scenario(js)

    run(surrounded())


@pytest.mark.parametrize("derived", [False, True])
def test_an_equal_table_adds_nothing_however_it_comes_in_batches(tmp_path: Path, derived: bool) -> None:
    async def scenario(js: JetstreamClient) -> None:
        table = table_of(ROWS)
        first = await publish(js, table, derived=derived)
        assert len(first) > 3
        assert sum(ack.count for ack in first) == ROWS
        assert not any(ack.duplicate for ack in first)
        again = await publish(js, pa.Table.from_batches(table.to_batches(777)), derived=derived)
        assert [(ack.sequence, ack.offset, ack.count) for ack in again] == [
            (ack.sequence, ack.offset, ack.count) for ack in first
        ]
        assert all(ack.duplicate for ack in again)
        assert await numbers(js) == list(range(ROWS))

    with_node(tmp_path, scenario)


def test_batches_of_a_derived_session_are_stored_once_whoever_publishes_them(tmp_path: Path) -> None:
    """Number the envelopes as a sink of micro-batches does: batch << 24 | n."""

    async def scenario(js: JetstreamClient) -> None:
        first, second = table_of(ROWS), table_of(ROWS, ROWS)
        begin = [batch << BATCH_BITS | 1 for batch in range(3)]
        acks = await publish(js, first, begin[0])
        assert [ack.sequence for ack in acks[:2]] == [begin[0], begin[0] + 1]
        await publish(js, first, begin[0])
        # Half of the next one, by an attempt that dies there; then all of it, and late ones of both.
        half = sum(ack.count for ack in acks[: len(acks) // 2])
        await publish(js, second.slice(0, half), begin[1])
        await publish(js, second, begin[1])
        for late, number in ((first, begin[0]), (second, begin[1])):
            assert all(ack.duplicate for ack in await publish(js, late, number))
        await publish(js, table_of(1, 2 * ROWS), begin[2])
        assert await numbers(js) == list(range(2 * ROWS + 1))

    with_node(tmp_path, scenario)


@pytest.mark.parametrize("derived", [False, True])
def test_other_rows_under_the_number_of_an_envelope_are_an_error(tmp_path: Path, derived: bool) -> None:
    async def scenario(js: JetstreamClient) -> None:
        await publish(js, table_of(3), derived=derived)
        with pytest.raises(RequestError, match=r"3 records.*of an envelope of 2"):
            await publish(js, table_of(2), derived=derived)
        assert await numbers(js) == [0, 1, 2]

    with_node(tmp_path, scenario)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"key": pa.array([b"k"])}), "no column value"),
        (pa.table({"value": pa.array([b"v"]), "subject": pa.array(["s"])}), "no column subject"),
    ],
)
def test_a_table_that_is_none_of_records_publishes_nothing(
    tmp_path: Path, table: pa.Table, message: str
) -> None:
    async def scenario(js: JetstreamClient) -> None:
        with pytest.raises(RequestError, match=message):
            await publish(js, table)
        assert await numbers(js) == []

    with_node(tmp_path, scenario)


def test_a_definite_refusal_ends_a_derived_session(tmp_path: Path) -> None:
    async def scenario(js: JetstreamClient) -> None:
        await js.streams.update("orders", read_only=True)
        with pytest.raises(StreamReadOnly):
            await publish(js, table_of(ROWS))
        await js.streams.update("orders", read_only=False)
        assert await numbers(js) == []

    with_node(tmp_path, scenario)


@pytest.mark.parametrize("lost", [{1}, {2}, {1, 2, 3, 4}])
def test_envelopes_lost_on_their_way_are_sent_again_in_order(tmp_path: Path, lost: set[int]) -> None:
    async def scenario() -> None:
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            jetstream.connect(server.url) as js,
            stream_by_hand(js.nats) as stream,
        ):
            stream.delivers = LostOnce(*lost)
            async with js.session(timeout_s=0.2, retry_s=10, derived=True) as session:
                await session.publish_batch("orders.new", table_of(ROWS))
            assert [int(value[:8]) for value in stream.ingest.values if value] == list(range(ROWS))

    run(scenario())


def test_a_window_is_bounded_in_bytes_too(tmp_path: Path) -> None:
    """Of five envelopes two are on their way at a time, while nothing is acked."""

    async def scenario() -> None:
        heard: asyncio.Queue[Msg] = asyncio.Queue()
        async with (
            EmbeddedNatsServer(tmp_path / "nats") as server,
            jetstream.connect(server.url) as js,
            jetstream.connect(server.url) as other,
        ):
            await other.nats.subscribe("orders.>", cb=heard.put)
            await other.nats.flush()
            async with (
                asyncio.TaskGroup() as tasks,
                js.session(window_bytes=1_200_000, timeout_s=60) as session,
            ):
                filled = list(session.envelopes("orders.new", table_of(24_900)))
                assert [len(each.payload) // 500_000 for each in filled] == [1] * 5
                answered = 0
                publishing = tasks.create_task(publish_all(session, filled))
                for taken in (2, 4, 5):
                    messages = [await heard.get() for _ in range(taken - answered)]
                    for client in (js, other):  # whatever else was sent has come then
                        await client.nats.flush()
                    assert heard.empty()
                    assert session.last_sequence == taken
                    answered = taken
                    for message in messages:
                        await answer(other, message, records_of(message))
                acks = [await future for future in await publishing]
                assert sum(ack.count for ack in acks) == 24_900

    run(scenario())


async def publish_all(session: SessionPublisher, filled: list[Filled]) -> list[SessionFuture]:
    return [await session.publish("orders.new", each) for each in filled]


def records_of(message: Msg) -> int:
    """Return how many records an envelope says it has, in its first field."""
    return int.from_bytes(message.data[19:23], "little")


async def answer(js: JetstreamClient, message: Msg, count: int | None) -> None:
    ack: dict[str, object] = {"stream": "orders", "seq": count or 1, "offset": (count or 1) - 1, "epoch": 1}
    if count is not None:
        ack["count"] = count
    await js.nats.publish(message.reply, json.dumps(ack).encode())


@pytest.mark.parametrize("derived", [False, True])
def test_who_stores_an_envelope_as_one_message_is_found_out(tmp_path: Path, derived: bool) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server, jetstream.connect(server.url) as js:

            async def store(message: Msg) -> None:
                await answer(js, message, None)

            await js.nats.subscribe("orders.>", cb=store)
            await js.nats.flush()
            with pytest.raises(Unsupported, match="as one message"):
                await publish(js, table_of(ROWS), derived=derived)

    run(scenario())


def test_tables_are_published_in_a_session_without_asyncio(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await asyncio.to_thread(publish_blocking, url)
            assert await numbers(js) == [*range(ROWS), *range(5)]

    def publish_blocking(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("orders", "orders.>")
            last = [publish_two(js), publish_two(js)][1]
            assert last > 10
            js.streams.update("orders", read_only=True)
            with pytest.raises(StreamReadOnly), js.session("s", derived=True) as session:
                session.publish_batch("orders.new", table_of(5), first_sequence=last + 1)
            with pytest.raises(RequestError, match="window"), js.session("s", window_bytes=0):
                pass

    run(scenario())


def publish_two(js: BlockingClient) -> int:
    with js.session("s", derived=True, window=2) as session:
        assert session.publish_batch("orders.new", table_of(ROWS), first_sequence=7) == ROWS
        assert session.publish_batch("orders.eu", table_of(5)) == 5
    return session.last_sequence


def test_a_blocking_session_that_is_left_by_an_error_waits_for_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server, jetstream.connect(server.url) as js:
            await js.nats.subscribe("orders.>")  # nobody answers
            await js.nats.flush()
            await asyncio.to_thread(leave, server.url)

    def leave(url: str) -> None:
        with jetstream.connect_blocking(url) as js, pytest.raises(ZeroDivisionError):
            fail_in_session(js)

    def fail_in_session(js: BlockingClient) -> None:
        with js.session("s", timeout_s=100) as session:
            session.publish_batch("orders.new", table_of(5))
            raise ZeroDivisionError

    run(scenario())
