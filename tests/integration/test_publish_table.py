"""Publishing from Arrow tables and data frames, against a real node."""

import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # pandas ships no types
import polars as pl
import pyarrow as pa
import pytest

import jetstream
from envelope.errors import DeadlinePassed, InvalidHeader, RecordTooLarge, RequestError
from jetstream import JetstreamClient
from jetstream.client.publish.message_table import ACKS_SCHEMA, ArrowTable
from tests.support.blocking_clients import against_a_node
from tests.support.nodes import nats_and_node, run

MESSAGES = pa.schema({"subject": pa.string()}).append(pa.field("value", pa.binary()))
LARGE = pa.schema({"subject": pa.large_string()}).append(pa.field("value", pa.large_binary()))
PAIRS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def with_client(directory: Path, body: Callable[[JetstreamClient], Awaitable[None]]) -> None:
    async def test() -> None:
        async with nats_and_node(directory) as (url, _), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await body(js)

    run(test())


def numbers(count: int) -> pa.Table:
    columns: dict[str, list[Any]] = {
        "subject": ["orders.a"] * count,
        "value": [b"%d" % number for number in range(count)],
    }
    return pa.Table.from_pydict(columns, MESSAGES)


COLUMNS: dict[str, list[Any]] = {"subject": ["orders.a", "orders.b", "orders.a"], "value": [b"1", b"2", None]}
TABLES: dict[str, Callable[[], ArrowTable]] = {
    "pyarrow Table": lambda: pa.table(COLUMNS),
    "pyarrow RecordBatch": lambda: pa.record_batch(COLUMNS),
    "pyarrow RecordBatchReader": lambda: pa.table(COLUMNS).to_reader(max_chunksize=1),
    "large types": lambda: pa.table(COLUMNS).cast(LARGE),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "polars with text and categories": lambda: pl.DataFrame(
        {"subject": pl.Series(COLUMNS["subject"], dtype=pl.Categorical), "value": ["1", "2", None]}
    ),
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "pandas with an index": lambda: pd.DataFrame(COLUMNS, index=["x", "y", "z"]),
}


def test_every_kind_of_table_is_published_in_order(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        for kind, table in TABLES.items():
            acks = await js.publish_table(table())
            assert acks.schema.equals(ACKS_SCHEMA), kind
            assert acks.to_pylist() == [
                {"stream": "orders", "offset": offset, "epoch": 1, "duplicate": False} for offset in range(3)
            ], kind
            stored = await js.read_table("orders")
            assert stored.select(["subject", "value"]).to_pydict() == COLUMNS, kind
            await js.streams.delete("orders")
            await js.streams.create("orders", "orders.>")

    with_client(tmp_path, body)


def test_a_pandas_frame_comes_back_as_one_and_can_be_published_again(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("copies", "copies.>")
        await js.publish_table(
            pd.DataFrame({"subject": "orders.a", "value": [b"1", b"2"], "key": ["k", None]})
        )
        frame = (await js.read_table("orders")).to_pandas()
        assert list(frame["value"]) == [b"1", b"2"]
        assert frame["timestamp"].dt.tz is not None
        frame["subject"] = "copies.a"
        await js.publish_table(frame.drop(columns=["offset", "timestamp"]).astype({"txid": "Int64"}))
        copied = await js.read_table("copies")
        assert copied.select(["key", "value"]).to_pylist() == [
            {"key": b"k", "value": b"1"},
            {"key": None, "value": b"2"},
        ]

    with_client(tmp_path, body)


@pytest.mark.parametrize("headers", [PAIRS, pa.map_(pa.string(), pa.string())], ids=["structs", "map"])
def test_what_a_row_carries_comes_back(tmp_path: Path, headers: pa.DataType) -> None:
    table = pa.table(
        {
            "subject": pa.array(["orders.a", "orders.a", "orders.a"]),
            "value": pa.array([b"1", b"2", None]),
            "key": pa.array(["k", None, "gone"]),
            "headers": pa.array([[("Trace", "t:1"), ("B", "")], None, []], pa.map_(pa.string(), pa.string()))
            if headers != PAIRS
            else pa.array([[{"key": "Trace", "value": b"t:1"}, {"key": "B", "value": b""}], None, []], PAIRS),
            "txid": pa.array([None, 7, 8], pa.int32()),
            "message_id": pa.array(["m-1", None, "m-3"]),
        }
    )

    async def body(js: JetstreamClient) -> None:
        acks = await js.publish_table(table)
        assert acks["duplicate"].to_pylist() == [False, False, False]
        first, second, third = [record async for record in js.read("orders")]
        assert (first.key, first.txid, first.value) == (b"k", None, b"1")
        assert first.headers[:2] == (("Trace", b"t:1"), ("B", b""))
        assert ("Nats-Msg-Id", b"m-1") in first.headers
        assert (second.key, second.txid, second.value) == (None, 7, b"2")
        assert (third.key, third.txid, third.value) == (b"gone", 8, None)
        again = await js.publish_table(table.filter(table["message_id"].is_valid()))
        assert again["duplicate"].to_pylist() == [True, True]
        assert again["offset"].to_pylist() == [0, 2]

    with_client(tmp_path, body)


WRONG_COLUMNS: list[tuple[dict[str, list[Any]], str]] = [
    ({"subject": ["orders.a"]}, "no column value; there are subject, value, key"),
    ({"valeu": [b"1"]}, "no column subject and no column value"),
    ({"subject": ["orders.a"], "value": [b"1"], "msg_id": ["1"]}, "no column msg_id"),
    ({"subject": ["orders.a"], "value": [b"1"], "offset": [1]}, "no column offset"),
    ({"subject": [1], "value": [b"1"]}, "subject is int64, and must be text"),
    ({"subject": [None], "value": [b"1"]}, "subject is null, and must be text"),
    ({"subject": [b"orders.a"], "value": [b"1"]}, "subject is binary, and must be text"),
    ({"subject": ["orders.a"], "value": [1.5]}, "value is double, and must be binary or text"),
    ({"subject": ["orders.a"], "value": [b"1"], "txid": [1.0]}, "txid is double, and must be integer"),
    ({"subject": ["orders.a"], "value": [b"1"], "message_id": [1]}, "message_id is int64"),
    ({"subject": ["orders.a"], "value": [b"1"], "key": [1]}, "key is int64"),
    ({"subject": ["orders.a"], "value": [b"1"], "headers": [{"A": "b"}]}, "headers is struct<"),
    ({"subject": ["orders.a"], "value": [b"1"], "headers": [["A"]]}, "headers is list<"),
]


def test_wrong_columns_are_refused_before_anything_is_published(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        for columns, said in WRONG_COLUMNS:
            with pytest.raises(RequestError, match=said):
                await js.publish_table(pa.table(columns))
            with pytest.raises(RequestError, match=said):
                await js.publish_table(pa.table(columns).to_reader())
            assert (await js.streams.info("orders")).log_end_offset == 0

    with_client(tmp_path, body)


def test_what_is_no_table_is_refused_before_anything_is_published(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        not_a_table: Any = [("orders.a", b"1")]
        with pytest.raises(TypeError, match="list is no table"):
            await js.publish_table(not_a_table)
        with pytest.raises(RequestError, match="no Arrow form"):
            await js.publish_table(pl.Series("value", [b"1"]))
        with pytest.raises(RequestError, match="no Arrow form"):
            await js.publish_table(pd.DataFrame({"subject": "orders.a", "value": [b"1", object()]}))
        twice = pa.Table.from_arrays([pa.array(["orders.a"])] * 3, names=["subject", "value", "value"])
        with pytest.raises(RequestError, match="more than once"):
            await js.publish_table(twice)
        assert (await js.streams.info("orders")).log_end_offset == 0

    with_client(tmp_path, body)


def test_a_row_that_can_be_no_message_is_named(tmp_path: Path) -> None:
    def pairs(*given: tuple[str, bytes | None]) -> pa.Table:
        headers = [[], [{"key": key, "value": value} for key, value in given]]
        return pa.table(
            {"subject": ["orders.a"] * 2, "value": [b"1"] * 2, "headers": pa.array(headers, PAIRS)}
        )

    async def body(js: JetstreamClient) -> None:
        table = pa.table({"subject": ["orders.a"] * 40 + [None], "value": [b"1"] * 41})
        with pytest.raises(RequestError, match="row 40 has no subject") as caught:
            await js.publish_table(table, window=1)
        assert caught.value.detail == {"row": 40}
        for given in ([("A", b"1"), ("A", b"2")], [("A", None)], [("A", b"\xff")]):
            with pytest.raises(InvalidHeader, match="row 1: ") as refused:
                await js.publish_table(pairs(*given))
            assert refused.value.detail == {"row": 1}

    with_client(tmp_path, body)


def test_a_refusal_of_the_stream_is_raised(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.update("orders", record_bytes_max=100)
        with pytest.raises(RecordTooLarge):
            await js.publish_table(pa.table({"subject": ["orders.a"] * 2, "value": [b"1", bytes(101)]}))

    with_client(tmp_path, body)


def test_many_rows_come_in_order_however_their_batches_are_cut(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        seen: list[int] = []
        singles = numbers(500).to_reader(max_chunksize=1)
        acks = await js.publish_table(singles, window=10, progress=seen.append)
        assert acks["offset"].to_pylist() == list(range(500))
        assert seen == sorted(seen)
        assert (seen[-1], len(seen) > 10) == (500, True)
        acks = await js.publish_table(numbers(500), window=7)
        assert acks["offset"].to_pylist() == list(range(500, 1000))
        stored = (await js.read_table("orders"))["value"].to_pylist()
        assert stored == [b"%d" % number for number in range(500)] * 2
        assert (await js.publish_table(numbers(0))).equals(ACKS_SCHEMA.empty_table())

    with_client(tmp_path, body)


def test_the_acks_of_all_named_streams_are_awaited(tmp_path: Path) -> None:
    async def body(js: JetstreamClient) -> None:
        await js.streams.create("audit", "orders.*")
        acks = await js.publish_table(numbers(100), streams=["audit", "orders"], window=8)
        assert acks["stream"].to_pylist() == ["audit", "orders"] * 100
        assert acks["offset"].to_pylist() == [offset for offset in range(100) for _ in range(2)]
        flat = await js.publish_all([("orders.a", b"v")] * 2, streams=["orders", "audit"])
        assert [(ack.stream, ack.offset) for ack in flat] == [
            ("orders", 100),
            ("audit", 100),
            ("orders", 101),
            ("audit", 101),
        ]
        async with js.publisher(timeout=0.2) as publisher:
            with pytest.raises(DeadlinePassed) as caught:
                await publisher.publish_all([("orders.a.b", b"v")] * 3, streams=["orders", "audit"])
            assert caught.value.detail["acked_by"] == "orders"
            with pytest.raises(DeadlinePassed):
                await publisher.flush()

    with_client(tmp_path, body)


# --- without asyncio ------------------------------------------------------------------------------


def test_the_blocking_client_reads_the_table_and_tells_progress_in_the_callers_thread(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("orders", "orders.>")
            threads: set[threading.Thread] = set()
            seen: list[int] = []

            def batches() -> Iterator[pa.RecordBatch]:
                threads.add(threading.current_thread())
                yield from numbers(500).to_batches(max_chunksize=1)

            def told(acked: int) -> None:
                threads.add(threading.current_thread())
                seen.append(acked)

            reader = pa.RecordBatchReader.from_batches(MESSAGES, batches())
            acks = js.publish_table(reader, window=10, progress=told)
            assert acks["offset"].to_pylist() == list(range(500))
            assert seen == [160, 320, 480, 500]
            assert threads == {threading.current_thread()}
            assert js.publish_table(pl.DataFrame(numbers(3)))["offset"].to_pylist() == [500, 501, 502]
            flat = js.publish_all([("orders.a", b"v")] * 2, streams=["orders"], progress=seen.append)
            assert ([ack.offset for ack in flat], seen[-1]) == ([503, 504], 2)
            with pytest.raises(RequestError, match="no column value"):
                js.publish_table(pa.table({"subject": ["orders.a"]}))

    against_a_node(tmp_path, scenario)


def test_a_stream_is_copied_through_the_same_blocking_client_as_it_is_read(tmp_path: Path) -> None:
    def scenario(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.streams.create("orders", "orders.>")
            js.streams.create("copies", "copies")
            js.publish_table(numbers(300))

            def renamed() -> Iterator[pa.RecordBatch]:
                for batch in js.read("orders", max_bytes=1).to_batch_reader():
                    subjects = pa.array(["copies"] * batch.num_rows)
                    yield pa.record_batch({"subject": subjects, "value": batch["value"]})

            copies = pa.RecordBatchReader.from_batches(MESSAGES, renamed())
            js.publish_table(copies, window=10)
            stored = js.read("copies").to_table()
            assert stored["value"].equals(js.read("orders").to_table()["value"])

    against_a_node(tmp_path, scenario)
