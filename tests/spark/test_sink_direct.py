"""The sink's writers on a real node, driven as Spark drives them, without it."""

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from envelope.errors import (
    NoResponders,
    RecordTooLarge,
    RequestError,
    StreamReadOnly,
    TxidDecreasing,
    UnknownStream,
    Unsupported,
    WrongExpectedStream,
)
from envelope.partitions import partition_of
from envelope.spark_errors import InvalidOption
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.writing.sink import JetstreamBatchWriter, JetstreamStreamWriter, TaskPublished
from jetstream.spark.writing.sink_columns import GROUPED_ROWS
from jetstream.spark.writing.sink_options import parse_sink_options
from tests.spark.conftest import Endpoints
from tests.support.spark_sinks import schema_of, task

ROWS = 12_000
SPARK_ROWS = 10_000
"""Of the batches in which Spark hands rows to a writer."""

VALUE = pa.schema([pa.field("value", pa.binary())])


def rows_of(count: int, first: int = 0, size: int = 100) -> pa.Table:
    values = [b"%08d" % number + bytes(size - 8) for number in range(first, first + count)]
    return pa.table({"value": pa.array(values, pa.binary())})


def numbers(js: BlockingClient, stream: str) -> list[int]:
    values: list[Any] = js.read(stream).to_table().column("value").to_pylist()
    return [int(value[:8]) for value in values]


class Sink:
    """Writes tables to one stream with given options."""

    def __init__(self, endpoints: Endpoints, stream: str, **options: str) -> None:
        self.options = {"servers": endpoints.servers, "subject": f"{stream}.new", "stream": stream, **options}

    def without(self, *names: str) -> "Sink":
        self.options = {name: value for name, value in self.options.items() if name not in names}
        return self

    def stream_writer(self, schema: StructType) -> JetstreamStreamWriter:
        """Return the writer as an executor gets it."""
        writer = JetstreamStreamWriter(parse_sink_options(self.options, streaming=True), schema)
        unpickled: JetstreamStreamWriter = pickle.loads(pickle.dumps(writer))
        return unpickled

    def batch_writer(self, schema: StructType) -> JetstreamBatchWriter:
        writer = JetstreamBatchWriter(parse_sink_options(self.options, streaming=False), schema)
        unpickled: JetstreamBatchWriter = pickle.loads(pickle.dumps(writer))
        return unpickled

    def micro_batch(
        self, table: pa.Table, batch: int, partition: int = 0, query: str = "q", rows: int = SPARK_ROWS
    ) -> int:
        with task(partition, query=query, batch=batch):
            message = self.stream_writer(schema_of(table)).write(iter(table.to_batches(rows)))
        assert isinstance(message, TaskPublished)
        return message.records


@pytest.fixture
def stream(js: BlockingClient, request: pytest.FixtureRequest) -> str:
    """A stream of the test's own."""
    name = f"s{abs(hash(request.node.nodeid))}"
    js.streams.create(name, f"{name}.>")
    return name


def test_a_micro_batch_that_is_run_again_adds_nothing(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    sink = Sink(endpoints, stream)
    table = rows_of(ROWS)
    assert sink.micro_batch(table, 0) == ROWS
    assert sink.micro_batch(table, 0, rows=777) == ROWS
    assert numbers(js, stream) == list(range(ROWS))


@pytest.mark.parametrize("subject", ["out.*", "out.>", "*"])
def test_a_row_whose_subject_has_wildcards_is_refused(
    endpoints: Endpoints, js: BlockingClient, stream: str, subject: str
) -> None:
    table = rows_of(2).append_column("subject", pa.array([f"{stream}.a", subject]))
    with pytest.raises(RequestError, match="wildcard"):
        Sink(endpoints, stream).micro_batch(table, 0)
    assert numbers(js, stream) == []


class Died(Exception):
    """The task is over."""


def dying(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
    raise Died


def test_a_micro_batch_that_was_cut_off_is_completed(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    sink = Sink(endpoints, stream)
    table = rows_of(ROWS)
    sink.micro_batch(rows_of(5, first=ROWS), 0)
    with pytest.raises(Died), task(0, query="q", batch=1):
        sink.stream_writer(schema_of(table)).write(dying(table.slice(0, ROWS - 1000).to_batches()))
    with js.session("spark/q/0", derived=True, stream=stream) as session:  # what the dead task has sent
        session.publish_batch(f"{stream}.new", table.slice(0, 4993), first_sequence=1 << 24 | 1)
    assert sink.micro_batch(table, 1) == ROWS
    assert numbers(js, stream) == [*range(ROWS, ROWS + 5), *range(ROWS)]


def test_late_attempts_of_earlier_micro_batches_add_nothing(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    sink = Sink(endpoints, stream)
    for batch in range(3):
        sink.micro_batch(rows_of(10, first=10 * batch), batch)
    for batch in (0, 1, 2):
        sink.micro_batch(rows_of(10, first=10 * batch), batch)
    # Of a batch that had nothing for this task the first time: it is over all the same.
    sink.micro_batch(rows_of(10, first=500), 4)
    sink.micro_batch(rows_of(10, first=900), 3)
    assert numbers(js, stream) == [*range(30), *range(500, 510)]


def test_tasks_and_queries_do_not_take_each_others_rows_for_repeats(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    sink = Sink(endpoints, stream)
    for place, (query, partition) in enumerate((("q", 0), ("q", 1), ("r", 0))):
        sink.micro_batch(rows_of(5, first=5 * place), 0, partition, query)
    assert numbers(js, stream) == list(range(15))


def test_a_batch_write_that_is_tried_again_adds_nothing(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    table = rows_of(ROWS)
    sink = Sink(endpoints, stream)
    writer = sink.batch_writer(schema_of(table))
    for _ in range(2):
        with task(3):
            assert writer.write(iter(table.to_batches())).records == ROWS
    with task(4):
        writer.write(iter(rows_of(5, first=ROWS).to_batches()))
    with task(3):  # another job
        sink.batch_writer(schema_of(table)).write(iter(rows_of(5, first=ROWS + 5).to_batches()))
    assert numbers(js, stream) == list(range(ROWS + 10))


def test_a_batch_write_with_a_name_adds_nothing_in_another_job(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    sink = Sink(endpoints, stream, sessionName="import")
    for _ in range(2):
        with task():
            sink.batch_writer(schema_of(rows_of(5))).write(iter(rows_of(5).to_batches()))
    assert numbers(js, stream) == list(range(5))


def test_all_columns_are_stored_as_they_are(endpoints: Endpoints, js: BlockingClient, stream: str) -> None:
    table = pa.table(
        {
            "headers": pa.array([[("a", "1")], None, []], MAP),
            "value": pa.array(["ä", None, ""], pa.utf8()),
            "key": pa.array([None, b"\xff", b""], pa.binary()),
            "txid": pa.array([1, None, 2], pa.int32()),
            "subject": pa.array([f"{stream}.a", None, f"{stream}.a"]),
        }
    )
    assert Sink(endpoints, stream).micro_batch(table, 0) == 3
    stored = js.read(stream).to_table()
    assert stored.column("value").to_pylist() == ["ä".encode(), None, b""]
    assert stored.column("key").to_pylist() == [None, b"\xff", b""]
    assert stored.column("txid").to_pylist() == [1, None, 2]
    assert stored.column("subject").to_pylist() == [f"{stream}.a", f"{stream}.new", f"{stream}.a"]
    headers: list[Any] = stored.column("headers").to_pylist()
    assert {"key": "a", "value": b"1"} in headers[0]


MAP = pa.map_(pa.utf8(), pa.utf8())


def test_rows_of_many_subjects_keep_the_order_of_each(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    count = GROUPED_ROWS + 5_000
    table = rows_of(count, size=20).append_column(
        "subject", pa.array([f"{stream}.{number % 7}" for number in range(count)])
    )
    sink = Sink(endpoints, stream).without("subject")
    sink.micro_batch(table, 0)
    sink.micro_batch(table, 0, rows=999)
    stored = js.read(stream).to_table()
    stored_numbers = numbers(js, stream)
    assert len(stored_numbers) == count
    for number in range(7):
        subjects: list[Any] = stored.column("subject").to_pylist()
        values = [
            row for row, subject in zip(stored_numbers, subjects, strict=True) if subject[-1] == str(number)
        ]
        assert values == list(range(number, count, 7))


def test_rows_go_to_the_partition_of_their_subject_in_a_session_with_each(
    endpoints: Endpoints, js: BlockingClient
) -> None:
    js.streams.create("splits", "splits.>", partitions=3, partition_by="subject")
    table = rows_of(9_000).append_column(
        "subject", pa.array([f"splits.{number % 11}" for number in range(9_000)])
    )
    sink = Sink(endpoints, "splits").without("subject")
    for _ in range(2):
        sink.micro_batch(table, 0)
    for number in range(3):
        expected = [row for row in range(9_000) if partition_of(f"splits.{row % 11}".encode(), 3) == number]
        assert sorted(numbers(js, f"splits/{number}")) == expected


def test_rows_go_to_the_partition_of_their_key(endpoints: Endpoints, js: BlockingClient) -> None:
    js.streams.create("keyed", "keyed.>", partitions=3, partition_by="key")
    keys = [None if row % 6 == 5 else f"k{row % 6}" for row in range(3_000)]
    sink = Sink(endpoints, "keyed")
    for _ in range(2):
        sink.micro_batch(rows_of(3_000).append_column("key", pa.array(keys)), 0)
    sink.micro_batch(rows_of(5, first=3_000), 1)
    all_keys = [*keys, *[None] * 5]
    for number in range(3):
        stored: list[Any] = js.read(f"keyed/{number}").to_table().to_pylist()
        for key in {key for key in all_keys if partition_of((key or "keyed.new").encode(), 3) == number}:
            rows = [int(row["value"][:8]) for row in stored if row["key"] == (key and key.encode())]
            assert rows == [row for row, each in enumerate(all_keys) if each == key]
    assert sum(len(numbers(js, f"keyed/{number}")) for number in range(3)) == 3_005


def test_a_stream_whose_partitions_are_dealt_out_is_refused(endpoints: Endpoints, js: BlockingClient) -> None:
    js.streams.create("dealt", "dealt.>", partitions=2, partition_by="queue")
    with pytest.raises(Unsupported, match="partitioned by queue"):
        Sink(endpoints, "dealt").micro_batch(rows_of(1), 0)


def test_what_no_stream_takes_is_a_clear_error(endpoints: Endpoints, js: BlockingClient, stream: str) -> None:
    js.streams.create("silent", "silent.>", ack="none")
    js.streams.create("second", f"{stream}.new")
    js.streams.create("small", "small.>", record_bytes_max=50)
    sinks = {
        Sink(endpoints, "nobody"): UnknownStream,
        Sink(endpoints, stream, subject="elsewhere"): NoResponders,
        Sink(endpoints, stream, subject="small.new"): WrongExpectedStream,
        Sink(endpoints, "nobody").without("stream"): UnknownStream,
        Sink(endpoints, stream).without("stream"): RequestError,
        Sink(endpoints, "silent"): Unsupported,
        Sink(endpoints, "small"): RecordTooLarge,
    }
    for sink, error in sinks.items():
        sink.options |= {"retryTimeoutMs": "300", "ackTimeoutMs": "300"}
        with pytest.raises(error):
            sink.micro_batch(rows_of(1), 0)
    js.streams.delete("second")
    Sink(endpoints, stream).without("stream").micro_batch(rows_of(1), 0)
    assert numbers(js, stream) == [0]


def test_a_read_only_stream_and_a_decreasing_txid_fail_the_task(
    endpoints: Endpoints, js: BlockingClient, stream: str
) -> None:
    sink = Sink(endpoints, stream)
    table = rows_of(1).append_column("txid", pa.array([5]))
    sink.micro_batch(table, 0)
    with pytest.raises(TxidDecreasing):
        sink.micro_batch(rows_of(1, first=1).append_column("txid", pa.array([4])), 1)
    js.streams.update(stream, read_only=True)
    with pytest.raises(StreamReadOnly):
        sink.micro_batch(rows_of(1, first=2), 2)
    js.streams.update(stream, read_only=False)
    sink.micro_batch(rows_of(1, first=2), 2)
    assert numbers(js, stream) == [0, 2]


def test_rows_without_a_subject_are_refused(endpoints: Endpoints, js: BlockingClient, stream: str) -> None:
    table = rows_of(3).append_column("subject", pa.array([f"{stream}.a", None, f"{stream}.b"]))
    with pytest.raises(RequestError, match="row 1 of its task has no subject"):
        Sink(endpoints, stream).without("subject").micro_batch(table, 0)
    assert numbers(js, stream) == []


def test_a_task_without_rows_publishes_nothing(endpoints: Endpoints, js: BlockingClient, stream: str) -> None:
    assert Sink(endpoints, stream).micro_batch(rows_of(0), 0) == 0
    assert numbers(js, stream) == []


def test_a_write_that_replaces_is_refused(endpoints: Endpoints) -> None:
    options = parse_sink_options(Sink(endpoints, "s").options, streaming=False)
    for writer in (JetstreamBatchWriter, JetstreamStreamWriter):
        with pytest.raises(InvalidOption, match="append"):
            writer(options, schema_of(rows_of(1)), overwrite=True)


def test_a_task_outside_of_a_query_is_refused(endpoints: Endpoints) -> None:
    sink = Sink(endpoints, "s")
    with task(), pytest.raises(RequestError, match="which micro-batch"):
        sink.stream_writer(schema_of(rows_of(1))).write(iter(rows_of(1).to_batches()))
    with pytest.raises(RequestError, match="in Spark's tasks"):
        sink.batch_writer(schema_of(rows_of(1))).write(iter(rows_of(1).to_batches()))
