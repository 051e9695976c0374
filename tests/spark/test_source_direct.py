"""The readers of the Spark source as Spark calls them, without Spark, against real nodes."""

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import StructType

from envelope.errors import RequestError, UnknownStream
from envelope.spark_errors import InvalidOption
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.options.source_options import parse_source_options
from jetstream.spark.reading.batch_reader import FilteringBatchReader
from jetstream.spark.reading.columns import output_schema
from jetstream.spark.reading.pieces import pieces_of
from jetstream.spark.reading.readers import batch_reader, read_schema, stream_reader
from tests.spark.conftest import Endpoints
from tests.support.compacting_nodes import CONFIG as COMPACTED
from tests.support.pauses import pause_thread
from tests.support.spark_reads import Query, against_a_node, batch_rows, numbers, rows_of, values_of
from tests.support.tiered_nodes import CONFIG as TIERED

# --- batch reads -------------------------------------------------------------------------------------


def test_a_batch_read_has_every_record_as_it_was_published(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        js.publish("orders.eu", b"one", key="k", headers={"n": "v"}, txid=7)
        js.publish("orders.us", b"")
        js.publish("orders.eu", None, key="k")
        large = bytes(range(256)) * 4096
        js.publish("orders.eu", large)
        rows = batch_rows({**options, "includeHeaders": "true"})
        assert [row["value"] for row in rows] == [b"one", b"", None, large]
        assert [row["key"] for row in rows] == [b"k", None, b"k", None]
        assert [row["subject"] for row in rows] == ["orders.eu", "orders.us", "orders.eu", "orders.eu"]
        assert [row["offset"] for row in rows] == [0, 1, 2, 3]
        assert [row["txid"] for row in rows] == [7, None, None, None]
        assert {"key": "n", "value": b"v"} in rows[0]["headers"]
        assert not rows[1]["headers"]
        times = [record.time for record in js.read("orders")]
        assert [row["timestamp"] for row in rows] == times
        [few, *_] = batch_rows({**options, "columns": "offset,stream,subject"})
        assert few == {"offset": 0, "stream": "orders", "subject": "orders.eu"}
        assert [row["value"] for row in batch_rows({**options, "subject": "orders.us"})] == [b""]
        assert [row["offset"] for row in batch_rows({**options, "key": "k"})] == [0, 2]

    against_a_node(tmp_path, scenario)


def test_small_batches_are_put_together_before_spark_sees_them(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        for number in range(50):
            js.publish("orders.x", b"%d" % number)
        reader = batch_reader(options, read_schema(options))
        [partition] = reader.partitions()
        [batch] = reader.read(partition)
        assert values_of(batch.to_pylist()) == list(range(50))

    against_a_node(tmp_path, scenario)


def test_large_batches_between_small_ones_stay_in_order(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        sizes = [1, 6_000, 1, 1, 5_000, 2]
        base = 0
        for size in sizes:
            js.publish_batch("orders.x", pa.table({"value": [b"%d" % n for n in range(base, base + size)]}))
            base += size
        assert values_of(batch_rows(options)) == list(range(base))

    against_a_node(tmp_path, scenario)


@pytest.mark.parametrize(
    "compression",
    ["lz4", pytest.param("zstd", marks=pytest.mark.slow("tests/spark/test_source_direct.py"))],
)
def test_compressed_and_partitioned_streams_are_read_like_others(tmp_path: Path, compression: str) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>", partitions=3, partition_by="key", compression=compression)
        js.publish_all([("orders.x", b"%d " % n + b"x" * 100, {"key": f"k{n}"}) for n in range(600)])
        rows = batch_rows(options)
        assert sorted(values_of(rows)) == list(range(600))
        assert {(row["stream"], row["partition"]) for row in rows} == {
            ("orders", 0),
            ("orders", 1),
            ("orders", 2),
        }
        one = batch_rows({**options, "stream": "orders/2"})
        assert {(row["stream"], row["partition"]) for row in one} == {("orders", 2)}
        assert one == [row for row in rows if row["partition"] == 2]

    against_a_node(tmp_path, scenario)


def test_a_compacted_stream_is_read_with_its_gaps(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>", **COMPACTED)
        for part in (range(200), range(200, 300)):  # in however many batches, the second begins a segment
            js.publish_all([("orders.x", b"%d " % n + b"x" * 1000, {"key": f"k{n % 7}"}) for n in part])
        while (state := js.streams.info("orders").compaction) is None or state.cleaned_end < 200:
            pause_thread()
        reader = batch_reader(options, read_schema(options))
        values = values_of(batch_rows(options, reader))
        assert values == sorted(set(values))
        assert len(values) < 300
        assert values[-7:] == list(range(293, 300))

    against_a_node(tmp_path, scenario, maintenance_interval=0.05)


def test_what_is_in_an_object_store_alone_is_read_too(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>", **TIERED)
        for turn in range(0, 300, 20):
            js.publish_all([("orders.x", b"%d " % n + b"x" * 1000) for n in range(turn, turn + 20)])
        while (tier := js.streams.info("orders").tier) is None or not tier.local_start_offset:
            pause_thread()
        assert values_of(batch_rows(options)) == list(range(300))

    against_a_node(tmp_path, scenario, maintenance_interval=0.05, tier=str(tmp_path / "store"))


def test_a_part_of_a_stream_is_read_by_offsets_and_by_times(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        for start in (0, 10, 20):
            numbers(js, range(start, start + 10))
        rows = batch_rows(options)
        moments = {row["offset"]: row["timestamp"].isoformat() for row in rows}
        cut = {"startingOffsets": '{"orders": 5}', "endingOffsets": '{"orders": 22}'}
        assert batch_rows({**options, **cut}) == rows[5:22]
        timed = {"startingTimestamp": moments[10], "endingTimestamp": moments[21]}
        found = batch_rows({**options, **timed})
        assert found == [row for row in rows if moments[10] <= row["timestamp"].isoformat() < moments[21]]
        assert 0 < len(found) < len(rows)
        pieces = batch_reader({**options, "maxRecordsPerPartition": "10"}, read_schema(options)).partitions()
        assert [piece.value.piece.range.size for piece in pieces] == [10, 10, 10]

    against_a_node(tmp_path, scenario)


def test_a_range_is_cut_where_a_batch_ends_if_one_ends_nearby(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        for start in range(0, 1000, 10):
            js.publish_batch("orders.x", pa.table({"value": [b"%d" % n for n in range(start, start + 10)]}))
        options = {**options, "startingOffsets": '{"orders": 3}'}
        for limits, most in (({"minPartitions": "7"}, 200), ({"maxRecordsPerPartition": "150"}, 150)):
            wanted = {**options, **limits}
            reader = batch_reader(wanted, read_schema(wanted))
            pieces = [partition.value.piece.range for partition in reader.partitions()]
            assert len(pieces) >= 7
            assert [piece.start % 10 for piece in pieces[1:]] == [0] * len(pieces[1:])
            assert 100 < max(piece.size for piece in pieces) <= most
            assert values_of(rows_of(reader, reader.partitions())) == list(range(3, 1000))
        many = {**options, "minPartitions": "70"}
        starts = [
            partition.value.piece.range.start
            for partition in batch_reader(many, read_schema(many)).partitions()
        ]
        assert len(starts) == 70
        assert any(start % 10 for start in starts[1:])

    against_a_node(tmp_path, scenario)


@pytest.mark.slow(
    "tests/spark/test_source_direct.py::test_a_stream_is_read_batch_by_batch_and_every_batch_again",
    "tests/property/test_spark_planning.py",
    "tests/unit/spark/reading/test_micro_batches.py",
)
def test_a_micro_batch_is_cut_by_its_offsets_alone(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        for start in range(0, 1000, 10):
            js.publish_batch("orders.x", pa.table({"value": [b"%d" % n for n in range(start, start + 10)]}))
        query = Query({**options, "startingOffsets": '{"orders": 3}', "minPartitions": "7"})
        rows = query.batch()
        assert rows is not None
        assert values_of(rows) == list(range(3, 1000))
        [batch] = query.batches
        pieces = [each.value.piece.range for each in query.reader.partitions(*batch)]
        assert pieces == pieces_of([pieces[0]._replace(end=1000)], min_partitions=7)
        assert any(piece.start % 10 for piece in pieces[1:]), "a batch was cut"
        query.close()

    against_a_node(tmp_path, scenario)


def test_filters_that_are_taken_over_leave_out_exactly_what_they_say(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        for start in range(0, 60, 20):
            js.publish_all(
                [
                    (f"orders.{'eu' if n % 2 else 'us'}.x", b"%d" % n, {"key": f"k{n % 3}"})
                    for n in range(start, start + 20)
                ]
            )
        rows = batch_rows(options)
        since = rows[25]["timestamp"]
        checked = parse_source_options(options, streaming=False)
        reader = FilteringBatchReader(checked, output_schema(checked.output_columns))
        wanted = [
            LessThan(("offset",), 50),
            GreaterThanOrEqual(("timestamp",), since),
            EqualTo(("key",), b"k1"),
            EqualTo(("subject",), "orders.eu.x"),
            EqualTo(("value",), b"31"),
        ]
        assert list(reader.pushFilters(wanted)) == wanted[-1:]
        assert batch_rows(options, reader) == [
            row
            for row in rows
            if row["offset"] < 50
            and row["timestamp"] >= since
            and row["key"] == b"k1"
            and row["subject"] == "orders.eu.x"
        ]
        reader.pushFilters([EqualTo(("offset",), 70)])
        assert batch_rows(options, reader) == []

    against_a_node(tmp_path, scenario)


def test_a_stream_is_found_without_nats(endpoints: Endpoints, js: BlockingClient) -> None:
    js.streams.create("found_plain", "found_plain.>")
    js.streams.create("found_parted", "found_parted.>", partitions=3, partition_by="key")
    js.streams.create("found_plain/7", "found_seventh.>")
    for stream in ("found_plain", "found_parted", "found_seventh"):
        js.publish_all([(f"{stream}.x", b"%d" % n, {"key": f"k{n}"}) for n in range(50)])
    for stream in ("found_plain", "found_parted", "found_parted/1", "found_plain/7"):
        by_nats = batch_rows({"servers": endpoints.servers, "stream": stream})
        assert batch_rows({"sockets": endpoints.sockets, "stream": stream}) == by_nats
    for pattern in ("found_.*", "found_parted", "found_.*/1"):
        by_nats = batch_rows({"servers": endpoints.servers, "streamPattern": pattern})
        assert batch_rows({"sockets": endpoints.sockets, "streamPattern": pattern}) == by_nats
        assert {row["stream"] for row in by_nats} <= {"found_plain", "found_plain/7", "found_parted"}
    with pytest.raises(UnknownStream, match="there is no stream 'nothing'"):
        batch_rows({"sockets": endpoints.sockets, "stream": "nothing"})


def test_streams_and_columns_that_there_are_not_are_refused(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        with pytest.raises(UnknownStream, match="there is no stream 'orders'"):
            batch_rows(options)
        with (
            closing(Query(options)) as query,
            pytest.raises(UnknownStream, match="there is no stream 'orders'"),
        ):
            query.batch()
        with pytest.raises(RequestError, match="there is no column 'topic'"):
            batch_reader(options, StructType().add("topic", "string"))
        with pytest.raises(InvalidOption, match="did you mean startingOffsets"):
            read_schema({**options, "startingOfsets": "earliest"})
        assert read_schema({**options, "maxOffsetsPerTrigger": "5"}) == read_schema(options)
        assert list(batch_reader(options, read_schema(options)).read(InputPartition(None))) == []

    against_a_node(tmp_path, scenario)


# --- streams -----------------------------------------------------------------------------------------


def test_a_stream_is_read_batch_by_batch_and_every_batch_again(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(100))
        limited = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "40"}
        with closing(Query(limited)) as query:
            assert query.reader.getDefaultReadLimit() == ReadMaxRows(40)
            assert values_of(query.batch() or []) == list(range(40))
            numbers(js, range(100, 110))
            query.restart()
            assert values_of(query.batch() or []) == list(range(40, 80))
            assert query.reader.reportLatestOffset() != query.at
            assert values_of(query.batch() or []) == list(range(80, 110))
            assert query.batch() is None
            assert query.reader.reportLatestOffset() == query.at
            query.restart()
            assert query.batch() is None
            again = [values_of(query.rows(number)) for number in range(3)]
            assert again == [list(range(40)), list(range(40, 80)), list(range(80, 110))]

    against_a_node(tmp_path, scenario)


def test_a_batch_has_so_many_bytes_as_were_allowed(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>", partitions=2, partition_by="key")
        for start in range(0, 200, 20):
            js.publish_all(
                [
                    ("orders.x", b"%d " % n + b"x" * 1000, {"key": f"k{n % 8}"})
                    for n in range(start, start + 20)
                ]
            )
        limited = {**options, "startingOffsets": "earliest", "maxBytesPerTrigger": "50k"}
        with closing(Query(limited)) as query:
            batches = list(iter(query.batch, None))
            assert 4 <= len(batches) <= 20
            assert all(len(values_of(batch)) < 60 for batch in batches)
            assert sorted(value for batch in batches for value in values_of(batch)) == list(range(200))
        tiny = {**limited, "maxBytesPerTrigger": "1"}
        with closing(Query(tiny)) as query:
            assert sum(len(batch) for batch in iter(query.batch, None)) == 200

    against_a_node(tmp_path, scenario)


def test_what_is_available_now_is_read_and_nothing_that_comes(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(30))
        limited = {**options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
        with closing(Query(limited)) as query:
            query.reader.prepareForTriggerAvailableNow()
            assert values_of(query.batch() or []) == list(range(20))
            numbers(js, range(30, 40))
            assert values_of(query.batch() or []) == list(range(20, 30))
            assert query.batch() is None

    against_a_node(tmp_path, scenario)


def test_the_first_batch_begins_where_it_did_when_it_was_planned(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(10))
        with closing(Query(options)) as query:  # from the latest offset on
            assert query.batch() == []
            numbers(js, range(10, 15))
            query.restart()
            assert query.rows(0) == []
            assert values_of(query.batch() or []) == list(range(10, 15))

    against_a_node(tmp_path, scenario)


def test_a_stream_that_comes_later_is_read_from_its_first_record(tmp_path: Path) -> None:
    def scenario(js: BlockingClient, options: dict[str, str]) -> None:
        with closing(Query({"servers": options["servers"], "streamPattern": "ord.*"})) as query:
            assert query.batch() == []
            js.streams.create("orders", "orders.>")
            numbers(js, range(10))
            query.restart()
            assert values_of(query.batch() or []) == list(range(10))

    against_a_node(tmp_path, scenario)


def test_the_limit_that_spark_is_told_is_one_that_the_options_have(tmp_path: Path) -> None:
    options = {"servers": "nats://127.0.0.1:1", "stream": "orders"}
    for option, limit in (
        ({}, ReadAllAvailable()),
        ({"maxBytesPerTrigger": "1m"}, ReadMaxBytes(1 << 20)),
        ({"minOffsetsPerTrigger": "9"}, ReadMinRows(9)),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "10"}, ReadMaxRows(10)),
    ):
        given = {**options, **option}
        assert stream_reader(given, read_schema(given)).getDefaultReadLimit() == limit
