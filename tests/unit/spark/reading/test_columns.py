"""What Spark gets of a log's columns."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import RequestError
from jetstream.log.format.schema import SCHEMA
from jetstream.spark.options.source_options import COLUMNS, HEADERS
from jetstream.spark.reading.columns import SOURCE_SCHEMA, Shape, check_schema, log_columns, output_schema
from tests.support.sockets import records_batch

VALUES = [b"one", b"", None, b"x" * 100]


def shaped(names: list[str], batch: pa.RecordBatch) -> pa.RecordBatch:
    return Shape(output_schema(names), "orders", 2).shaped(batch)


def test_the_columns_are_those_that_the_options_know() -> None:
    assert tuple(SOURCE_SCHEMA.names) == (*COLUMNS, HEADERS)
    assert all(field.nullable for field in SOURCE_SCHEMA)


def test_a_batch_gets_kafkas_names_and_what_the_log_does_not_have() -> None:
    rows = shaped([*COLUMNS, HEADERS], records_batch(7, VALUES)).to_pylist()
    assert [row["value"] for row in rows] == VALUES
    assert [row["offset"] for row in rows] == [7, 8, 9, 10]
    assert {(row["stream"], row["partition"], row["timestampType"]) for row in rows} == {("orders", 2, 1)}
    assert rows[1]["headers"] == [{"key": "n", "value": b"8"}]
    assert (rows[1]["key"], rows[1]["subject"], rows[1]["txid"]) == (b"k2", "s.8", 8)


def test_a_single_batch_is_not_copied() -> None:
    records = records_batch(0, VALUES)
    spark = shaped(["value", "offset"], records)
    for name in ("value", "offset"):
        theirs, ours = spark.column(name).buffers(), records.column(name).buffers()
        assert [each.address for each in theirs[1:] if each] == [each.address for each in ours[1:] if each]


@given(names=st.permutations(SOURCE_SCHEMA.names), count=st.integers(1, len(SOURCE_SCHEMA)))
def test_the_columns_are_those_that_are_wanted_in_that_order(names: list[str], count: int) -> None:
    wanted = names[:count]
    batch = shaped(wanted, records_batch(7, VALUES))
    assert batch.schema.equals(output_schema(wanted))
    everything = shaped(SOURCE_SCHEMA.names, records_batch(7, VALUES)).to_pylist()
    assert batch.to_pylist() == [{name: row[name] for name in wanted} for row in everything]


def test_more_rows_than_ever_have_their_constants() -> None:
    shape = Shape(output_schema(["stream", "partition"]), "orders", 0)
    for rows in (1, 40_000, 3, 100_000):
        columns = [pa.nulls(rows, field.type) for field in SCHEMA]
        batch = shape.shaped(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
        assert batch.num_rows == rows
        assert batch.column(0).unique().to_pylist() == ["orders"]


def test_only_what_a_column_needs_is_asked_of_a_node() -> None:
    assert log_columns(["stream", "offset"]) == ()
    assert log_columns(["value", "offset", "key"]) == ("key", "value")


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (pa.field("topic", pa.utf8()), "there is no column 'topic': there are key, value, stream"),
        (pa.field("value", pa.utf8()), "column 'value' is binary, not string"),
        (pa.field("partition", pa.int64()), "column 'partition' is int32, not int64"),
        (pa.field("timestamp", pa.timestamp("us")), "column 'timestamp' is timestamp"),
        (pa.field("headers", pa.list_(pa.binary())), "column 'headers' is list"),
        (pa.field("key", pa.binary(), nullable=False), "column 'key' is null in some rows"),
        (pa.field("offset", pa.int64()), "column 'offset' is wanted twice"),
    ],
)
def test_a_schema_that_cannot_be_is_refused_with_what_is_wrong(
    field: "pa.Field[pa.DataType]", told: str
) -> None:
    with pytest.raises(RequestError, match=told):
        check_schema(pa.schema([pa.field("offset", pa.int64(), nullable=False), field]))


def test_a_schema_may_be_any_of_the_columns_in_any_order() -> None:
    check_schema(pa.schema(list(reversed(list(SOURCE_SCHEMA)))))
    check_schema(pa.schema([SOURCE_SCHEMA.field("subject").with_nullable(False)]))
