"""Envelopes through a real nats-server into a real node: stored, refused, repeated, and read again."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pyarrow as pa
import pytest
import zstandard
from nats.aio.msg import Msg

import jetstream
from envelope.envelopes import COOKIE, encode_batch, encode_message
from envelope.errors import (
    ConnectionLost,
    InvalidEnvelope,
    InvalidSubject,
    NoResponders,
    RecordTooLarge,
    RequestError,
    TxidDecreasing,
    Unsupported,
)
from jetstream import JetstreamClient
from jetstream.client.publish.batch_envelopes import batch_rows, envelopes
from jetstream.client.publish.batch_publisher import Transmit
from jetstream.log.format.message import record_batch_fields
from jetstream.log.format.schema import HEADERS_TYPE
from tests.support.envelopes import (
    arrow,
    batch_of,
    binary,
    ends,
    extent,
    forged,
    raw,
    schema_end,
    with_number,
    without_schema,
)
from tests.support.nodes import nats_and_node, run


async def ask(js: JetstreamClient, payload: bytes, subject: str = "orders.new") -> dict[str, Any]:
    reply = await js.nats.request(subject, payload, timeout=10)
    answer: dict[str, Any] = json.loads(reply.data)
    return answer


def table_of(count: int, size: int = 128) -> pa.Table:
    return pa.table({"value": pa.array([b"%08d" % number + bytes(size - 8) for number in range(count)])})


def test_messages_and_batches_are_read_as_they_were_published(tmp_path: Path) -> None:
    rows = {"value": binary(b"1", None), "key": binary(None, b"k"), "txid": pa.array([3, 4], pa.int64())}

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            assert (await ask(js, encode_message(b"0", key=b"\x00", correlation_id="c")))[
                "correlation_id"
            ] == "c"
            ack = await ask(js, encode_batch(arrow(rows), 2, compress=True))
            assert (ack["first_offset"], ack["offset"], ack["seq"], ack["count"]) == (1, 2, 3, 2)
            await ask(js, COOKIE + b" by chance")
            records = [record async for record in js.read("orders")]
            assert [(record.key, record.txid, record.value) for record in records] == [
                (b"\x00", None, b"0"),
                (None, 3, b"1"),
                (b"k", 4, None),
                (None, None, COOKIE + b" by chance"),
            ]

    run(scenario())


def test_a_batch_is_not_stored_again_after_a_restart(tmp_path: Path) -> None:
    data = encode_batch(arrow({"value": binary(b"1", b"2", b"3")}), 3, message_id=b"b")

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"0")
            first = await ask(js, data)
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            again = await ask(js, data)
            assert again == first | {"duplicate": True, "epoch": again["epoch"]}
            assert (again["first_offset"], again["count"]) == (1, 3)
            assert (await js.streams.info("orders")).log_end_offset == 4

    run(scenario())


GOOD = arrow({"value": binary(b"v")})
ZSTD = arrow({"value": binary(b"v")}, pa.ipc.IpcWriteOptions(compression="zstd"))
NAMED = arrow({"value": binary(b"v"), "headers": pa.array([[("name", b"")]], HEADERS_TYPE)})
TWO = arrow({"value": binary(b"abcde", b"f")})
AT = schema_end(GOOD)
FIELDS = record_batch_fields(GOOD[AT:])
FALSE_NUMBERS = [
    *((FIELDS.body_length, -8), (FIELDS.row_count, -1), (FIELDS.nodes, -1), (FIELDS.nodes + 8, -2)),
    *((FIELDS.buffers + 16, -8), (FIELDS.buffers + 24, -8), (FIELDS.buffers + 40, -(1 << 63))),
]


def hostile() -> Sequence[tuple[bytes, int]]:
    """Batches that are refused, each with the code of its refusal."""
    bomb = zstandard.compress(bytes(1 << 30))
    return [
        (batch_of(forged(NAMED, b"name\0", b"na\xffe\0"), 1), InvalidEnvelope.ack_code),
        (batch_of(forged(TWO, ends(0, 5, 6), ends(0, 7, 6)), 2), InvalidEnvelope.ack_code),
        (batch_of(forged(TWO, ends(0, 5, 6), ends(-1, 5, 6)), 2), InvalidEnvelope.ack_code),
        *(
            (batch_of(with_number(GOOD, AT + place, number), 1), InvalidEnvelope.ack_code)
            for place, number in FALSE_NUMBERS
        ),
        (raw(extent(1, 1 << 30), bomb, flags=1), RecordTooLarge.ack_code),
        (raw(extent(1, 1000), bomb, flags=1), InvalidEnvelope.ack_code),
        (raw(extent(1, 1 << 30), bomb, kind=2, flags=1), RecordTooLarge.ack_code),
        (batch_of(GOOD, 10**9), RecordTooLarge.ack_code),
        (
            batch_of(GOOD.replace((1).to_bytes(8, "little"), (10**9).to_bytes(8, "little")), 1),
            InvalidEnvelope.ack_code,
        ),
        (batch_of(ZSTD, 1), InvalidEnvelope.ack_code),
        (batch_of(arrow({"value": pa.array(["v"]).dictionary_encode()}), 1), InvalidEnvelope.ack_code),
        (batch_of(arrow({"offset": binary(b"v")}), 1), InvalidEnvelope.ack_code),
        (batch_of(b"\xff\xff\xff\xff\xff\xff\xff\x7f", 1), InvalidEnvelope.ack_code),
        (batch_of(without_schema(GOOD), 1), InvalidEnvelope.ack_code),
        (raw(version=9), Unsupported.ack_code),
    ]


def test_hostile_envelopes_are_refused_and_the_node_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>", record_bytes_max=1 << 20)
            for number, (payload, ack_code) in enumerate(hostile()):
                answer = await ask(js, payload)
                assert answer["error"]["err_code"] == ack_code, (number, answer)
                assert (await js.publish("orders.new", b"next")).offset == number
            records = [record async for record in js.read("orders")]
            assert {record.value for record in records} == {b"next"}

    run(scenario())


def test_an_envelope_is_within_what_nats_carries_however_rows_differ() -> None:
    values = [b"%d" % number for number in range(5000)]
    values[10:15] = [bytes(400_000)] * 5
    rows = list(batch_rows(pa.table({"value": pa.array(values, pa.binary())})))
    filled = list(envelopes(rows, "s", 1_000_000, compress=False, message_id=None))
    assert max(len(each.payload) for each in filled) <= 1_000_000
    assert sum(each.records for each in filled) == 5000
    with pytest.raises(RecordTooLarge):
        list(envelopes(rows, "s", 300_000, compress=False, message_id=None))


@pytest.mark.parametrize("compress", [False, True])
def test_a_table_is_published_in_as_many_envelopes_as_nats_needs(tmp_path: Path, compress: bool) -> None:
    table = table_of(20_000).append_column("key", pa.array(["k"] * 20_000))

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            acks = await js.publish_batch("orders.new", table, message_id="file-1", compress=compress)
            assert len(acks) > 1
            assert [ack.first_offset for ack in acks[1:]] == [ack.offset + 1 for ack in acks[:-1]]
            assert (acks[0].first_offset, acks[-1].offset) == (0, 19_999)
            again = await js.publish_batch("orders.new", table, message_id="file-1", compress=compress)
            assert [(ack.first_offset, ack.offset, ack.duplicate) for ack in again] == [
                (ack.first_offset, ack.offset, True) for ack in acks
            ]
            stored = await js.read_table("orders")
            assert stored["value"].combine_chunks().equals(table["value"].combine_chunks().cast(pa.binary()))
            assert set(stored["key"].to_pylist()) == {b"k"}

    run(scenario())


def varied_table(count: int) -> pa.Table:
    """Rows of all sizes, some without a key, headers or a value."""
    headers = [[("name", bytes(number % 50))] * (number % 3) or None for number in range(count)]
    columns = {
        "value": pa.array([None if number % 11 == 0 else bytes(number % 199) for number in range(count)]),
        "key": pa.array([None if number % 7 else b"%d" % number for number in range(count)]),
        "headers": pa.array(headers, pa.map_(pa.utf8(), pa.binary())),
        "txid": pa.array(range(count)),
    }
    return pa.table(columns)


@pytest.mark.parametrize("compress", [False, True])
def test_equal_tables_have_equal_envelopes_however_they_come_in_batches(compress: bool) -> None:
    whole = varied_table(6_000)
    chunked = [whole.to_batches(max_chunksize=size) for size in (17, 900, 5_999)]
    uneven = [whole.slice(0, 7), whole.slice(7, 2_000), whole.slice(2_007)]
    several = [*chunked, [batch for piece in uneven for batch in piece.to_batches()]]
    for payload_max in (4_000, 60_000):
        wanted = list(envelopes(batch_rows(whole), "s", payload_max, compress=compress, message_id="f"))
        assert sum(each.records for each in wanted) == 6_000
        assert len(wanted) > 1
        for batches in several:
            table = pa.Table.from_batches(batches)
            assert table.equals(whole)
            again = list(envelopes(batch_rows(table), "s", payload_max, compress=compress, message_id="f"))
            assert again == wanted


def test_an_envelope_whose_id_other_records_have_is_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"")
            first = await js.publish_batch("orders.new", table_of(5), message_id="file")
            for others in (table_of(6), table_of(1)):
                with pytest.raises(RequestError, match="5 records, from offset 1 to 5") as caught:
                    await js.publish_batch("orders.new", others, message_id="file")
                assert caught.value.detail == {"first_offset": 1, "offset": 5, "count": 5}
            assert (await js.publish_batch("orders.new", table_of(5), message_id="file"))[0].duplicate
            assert first[0].count == 5
            assert (await js.streams.info("orders")).log_end_offset == 6

    run(scenario())


def test_rows_of_very_different_sizes_fit_what_nats_carries(tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(5000)]
    values[10:16] = [bytes(3_000_000)] * 6  # more than a batch of the log takes

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish_batch("orders.new", pa.table({"value": pa.array(values, pa.binary())}))
            assert (await js.read_table("orders"))["value"].to_pylist() == values

    run(scenario())


def test_tables_of_every_kind_are_published(tmp_path: Path) -> None:
    headers = pa.array([[("a", "b")], None], pa.map_(pa.utf8(), pa.utf8()))
    tables: list[Any] = [
        pl.DataFrame({"value": ["text", None], "txid": [1, 2]}),
        pa.table({"value": pa.array(["a", "b"]).dictionary_encode(), "headers": headers}),
        pa.table({"value": pa.chunked_array([[b"1"], [b"2"], []], pa.large_binary())}),
        pa.table({"value": pa.array([], pa.binary())}),
    ]

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            counts = [len(await js.publish_batch("orders.new", table)) for table in tables]
            assert counts == [1, 1, 1, 0]
            records = [record async for record in js.read("orders")]
            assert [record.value for record in records] == [b"text", None, b"a", b"b", b"1", b"2"]
            assert records[2].headers == (("a", b"b"),)

    run(scenario())


BAD_TABLES: dict[str, Any] = {
    "no value": pa.table({"key": [b"k"]}),
    "a column too many": pa.table({"value": [b"v"], "subject": ["s"]}),
    "a value that is a number": pa.table({"value": [1]}),
    "headers that are none": pa.table({"value": [b"v"], "headers": ["a"]}),
    "a column twice": pa.Table.from_arrays([pa.array([b"v"])] * 2, names=["value", "value"]),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_a_table_that_is_no_batch_is_refused_before_anything_is_sent(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            with pytest.raises(RequestError):
                await js.publish_batch("orders.new", BAD_TABLES[name])
            with pytest.raises(TypeError):
                await js.publish_batch("orders.new", table_of(1), windw=3)  # type: ignore[call-arg]  # the test
            assert (await js.streams.info("orders")).log_end_offset == 0

    run(scenario())


def test_failures_of_a_batch_are_typed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            with pytest.raises(NoResponders):
                await js.publish_batch("elsewhere", table_of(1))
            with pytest.raises(RecordTooLarge):
                await js.publish_batch("orders.new", pa.table({"value": [b"x" * (1 << 25)]}))
            await js.publish("orders.new", b"", txid=5)
            with pytest.raises(TxidDecreasing):
                await js.publish_batch("orders.new", pa.table({"value": [b"v"], "txid": [4]}))

    run(scenario())


def test_who_stores_an_envelope_unopened_is_noticed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:

            async def store(message: Msg) -> None:
                await message.respond(b'{"stream":"other","seq":1}')

            await js.nats.subscribe("other", cb=store)
            for records in (2, 1):
                with pytest.raises(Unsupported):
                    await js.publish_batch("other", table_of(records))

    run(scenario())


@pytest.mark.parametrize("transmit", get_args(Transmit))
def test_records_published_one_by_one_share_envelopes_and_keep_their_order(
    tmp_path: Path, transmit: Transmit
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with js.batch_publisher("orders.new", transmit=transmit, batch_bytes=4096) as publisher:
                acks = [
                    await publisher.publish(b"%d" % number, key=b"k", txid=number, headers={"a": b"b"})
                    for number in range(500)
                ]
            assert [(await ack).offset for ack in acks] == list(range(500))
            records = [record async for record in js.read("orders")]
            assert [record.value for record in records] == [b"%d" % number for number in range(500)]
            assert {(record.key, record.headers) for record in records} == {(b"k", (("a", b"b"),))}
            assert [record.txid for record in records] == list(range(500))
            batches = len([batch async for batch in js.read_batches("orders")])
            assert batches < 50, "they came in envelopes"

    run(scenario())


def test_what_is_published_at_once_goes_at_once_and_what_lingers_goes_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            for transmit in ("immediate", "linger"):
                async with js.batch_publisher("orders.new", transmit=transmit) as publisher:
                    first, second = await publisher.publish(b"1"), await publisher.publish(b"2")
                    acks = await asyncio.gather(first, second)  # nobody has to flush
                assert acks[1].offset == acks[0].offset + 1

    run(scenario())


def test_a_flush_sends_what_is_not_full(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with js.batch_publisher("orders.new", transmit="bytes") as publisher:
                ack = await publisher.publish(None)
                await publisher.flush()
                assert (await js.streams.info("orders")).log_end_offset == 1
                assert (await ack).offset == 0

    run(scenario())


def test_a_publisher_waits_while_envelopes_wait(tmp_path: Path) -> None:
    """With nobody to ack, the window fills, then two envelopes wait, then publishing does."""

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.nats.subscribe("silent")
            published = 0

            async def publish_for_ever() -> None:
                nonlocal published
                async with js.batch_publisher("silent", batch_bytes=1000, window=1) as publisher:
                    while True:
                        _ = await publisher.publish(bytes(900))
                        published += 1

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(publish_for_ever(), 0.5)
            # One is sent and not acked, one is about to be sent, two wait, and one is being filled.
            assert published == 5

    run(scenario())


def test_a_failure_that_nobody_awaits_is_raised_at_the_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            with pytest.raises(NoResponders):
                async with js.batch_publisher("nobody") as publisher:
                    _ = await publisher.publish(b"1")
            with pytest.raises(InvalidSubject):
                async with js.batch_publisher("no subject") as publisher:
                    _ = await publisher.publish(b"1")
            with pytest.raises(RecordTooLarge):
                async with js.batch_publisher("nobody") as publisher:
                    _ = await publisher.publish(b"x" * (1 << 20))
            with pytest.raises(RequestError):
                async with js.batch_publisher("nobody", transmit="later"):  # type: ignore[arg-type]  # the test
                    pass

    run(scenario())


async def left_by_an_error(js: JetstreamClient, acks: list[jetstream.RecordAck]) -> None:
    async with js.batch_publisher("orders.new", transmit="bytes") as publisher:
        acks.append(await publisher.publish(b"1"))
        raise KeyError


def test_leaving_the_block_by_an_error_raises_it_and_ends_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            acks: list[jetstream.RecordAck] = []
            with pytest.raises(KeyError):
                await left_by_an_error(js, acks)
            with pytest.raises(ConnectionLost):
                await acks[0]
            assert (await js.streams.info("orders")).log_end_offset == 0

    run(scenario())


def test_the_blocking_client_publishes_batches(tmp_path: Path) -> None:
    def publish(url: str) -> list[jetstream.PublishAck]:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("orders", "orders.>")
            return js.publish_batch("orders.new", table_of(1000))

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            acks = await asyncio.to_thread(publish, url)
            assert (acks[0].first_offset, acks[-1].offset) == (0, 999)

    run(scenario())
