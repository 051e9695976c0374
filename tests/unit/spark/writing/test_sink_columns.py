"""The sink's columns, and its groups of rows by subject."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import RequestError
from envelope.headers import MESSAGE_HEADERS
from jetstream.spark.writing import sink_columns
from jetstream.spark.writing.sink_columns import RowGroup, as_records, check_columns, groups_of, pieces_of

HEADERS = pa.list_(pa.struct([pa.field("key", pa.utf8()), pa.field("value", pa.binary())]))


def schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, column) for name, column in columns.items()])


@pytest.mark.parametrize(
    "columns",
    [
        schema(value=pa.binary()),
        schema(value=pa.utf8(), key=pa.utf8()),
        schema(txid=pa.int32(), value=pa.large_binary(), key=pa.binary(), headers=HEADERS),
        schema(value=pa.binary(), headers=pa.map_(pa.utf8(), pa.binary())),
        schema(value=pa.binary(), headers=pa.map_(pa.utf8(), pa.utf8())),
        schema(value=pa.null()),
    ],
)
def test_columns_of_binary_or_text_are_taken(columns: pa.Schema) -> None:
    check_columns(columns, has_subject=True)
    check_columns(columns.append(pa.field("subject", pa.utf8())), has_subject=False)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (schema(key=pa.binary()), "no column value: the table has key; the sink takes value, key, subject"),
        (schema(value=pa.binary(), id=pa.int64(), at=pa.date32()), "no place for the column id, at"),
        (schema(value=pa.int64()), "the column value is int64"),
        (schema(value=pa.binary(), key=pa.float64()), "the column key is double"),
        (schema(value=pa.binary(), txid=pa.utf8()), "the column txid is string"),
        (schema(value=pa.binary(), subject=pa.binary()), "the column subject is binary"),
        (schema(value=pa.binary(), headers=pa.list_(pa.utf8())), "the column headers is"),
        (pa.schema([("value", pa.binary())] * 2), "more than once"),
    ],
)
def test_columns_that_cannot_be_published_are_named(columns: pa.Schema, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check_columns(columns, has_subject=True)


def test_without_a_subject_it_is_said_what_there_is() -> None:
    with pytest.raises(RequestError, match=r"no option subject, and no such column: the table has value;"):
        check_columns(schema(value=pa.binary()), has_subject=False)


Row = tuple[str | None, int, int | None]


def batches_of(rows: list[Row], sizes: list[int], *, txids: bool) -> list[pa.RecordBatch]:
    """Return the rows in batches of these sizes, the last one with what is left."""
    columns: dict[str, Any] = {
        "value": pa.array([b"%d" % number for _, number, _ in rows], pa.binary()),
        "subject": pa.array([subject for subject, _, _ in rows], pa.utf8()),
    }
    if txids:
        columns["txid"] = pa.array([txid for _, _, txid in rows], pa.int64())
    table = pa.table(columns)
    batches: list[pa.RecordBatch] = []
    start = 0
    for size in [*sizes, len(rows)]:
        batches += table.slice(start, size).to_batches()
        start += size
    return batches


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 99), st.none()), max_size=40)
SIZES = st.lists(st.integers(0, 12), max_size=8)


def grouped(
    batches: list[pa.RecordBatch], default: str | None, *, by_key: bool = False
) -> Iterator[RowGroup]:
    row = 0
    for piece in pieces_of(iter(batches)):
        yield from groups_of(piece, default, by_key=by_key, first_row=row)
        row += piece.num_rows


def as_lists(batches: list[pa.RecordBatch], default: str | None = "d") -> list[tuple[str, list[Any]]]:
    groups = grouped(batches, default)
    return [(each.subject, each.rows.column("value").to_pylist()) for each in groups]


@given(rows=ROWS, sizes=SIZES, others=SIZES, txids=st.booleans())
@settings(deadline=None)
def test_groups_follow_from_the_rows_alone_and_keep_the_order_of_each_subject(
    rows: list[Row], sizes: list[int], others: list[int], txids: bool
) -> None:
    chunk = 7
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_columns, "GROUPED_ROWS", chunk)
        found = as_lists(batches_of(rows, sizes, txids=txids))
        assert found == as_lists(batches_of(rows, others, txids=txids))
    for subject in ("a", "b", "c", "d"):
        expected = [b"%d" % number for given, number, _ in rows if (given or "d") == subject]
        assert [value for name, values in found if name == subject for value in values] == expected
    in_order = [value for _, values in found for value in values]
    if txids:
        assert in_order == [b"%d" % number for _, number, _ in rows]
    for start in range(0, len(rows), chunk):
        assert sorted(in_order[start : start + chunk]) == sorted(
            b"%d" % number for _, number, _ in rows[start : start + chunk]
        )
    if not txids and len(rows) <= chunk:
        assert len(found) == len({given or "d" for given, _, _ in rows})


def test_a_row_without_a_subject_is_named_by_its_number_in_the_task() -> None:
    rows: list[Row] = [("a", number, None) for number in range(10)]
    rows[8] = (None, 8, None)
    with pytest.raises(RequestError, match="row 8 of its task"):
        as_lists(batches_of(rows, [3, 3], txids=False), None)


@given(
    headers=st.lists(
        st.none()
        | st.lists(
            st.tuples(
                st.sampled_from(["a", "b", *sorted(MESSAGE_HEADERS)[:3]]), st.sampled_from([b"1", b"2"])
            ),
            max_size=4,
        ),
        max_size=12,
    ),
    start=st.integers(0, 3),
)
@settings(deadline=None)
def test_headers_that_are_a_messages_are_left_out(
    headers: list[list[tuple[str, bytes]] | None], start: int
) -> None:
    of_map = pa.array(headers, pa.map_(pa.utf8(), pa.binary()))
    values = pa.array([b"v"] * len(headers), pa.binary())
    batch = pa.RecordBatch.from_arrays([of_map, values], ["headers", "value"])
    found: list[Any] = as_records(batch.slice(start)).column("headers").to_pylist()
    assert found == [
        None
        if row is None
        else [{"key": name, "value": value} for name, value in row if name not in MESSAGE_HEADERS]
        for row in headers[start:]
    ]


def test_rows_without_headers_are_as_they_were() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"v"])], ["value"])
    assert as_records(batch) == batch


KEYED = st.lists(
    st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([b"x", b"y", b"", None])), max_size=40
)


@given(rows=KEYED, size=st.integers(1, 9), has_subject=st.booleans())
@settings(deadline=None)
def test_groups_by_key_have_one_key_each_and_keep_its_order(
    rows: list[tuple[str | None, bytes | None]], size: int, has_subject: bool
) -> None:
    columns: dict[str, Any] = {
        "value": pa.array([b"%d" % place for place in range(len(rows))], pa.binary()),
        "key": pa.array([key for _, key in rows], pa.binary()),
    }
    if has_subject:
        columns["subject"] = pa.array([subject for subject, _ in rows], pa.utf8())
    batches = pa.table(columns).to_batches(size)
    found: dict[tuple[str, bytes | None], list[int]] = {}
    for each in grouped(batches, "d", by_key=True):
        assert each.rows.column("key").to_pylist() == [each.key] * each.rows.num_rows
        values: list[Any] = each.rows.column("value").to_pylist()
        assert (each.subject, each.key) not in found
        found[each.subject, each.key] = [int(value) for value in values]
    expected: dict[tuple[str, bytes | None], list[int]] = {}
    for place, (subject, key) in enumerate(rows):
        expected.setdefault(((subject if has_subject else None) or "d", key), []).append(place)
    assert found == expected


def test_large_rows_are_grouped_a_few_at_a_time() -> None:
    value = bytes(5 << 20)
    rows = pa.table({"value": [value] * 7, "subject": ["a", "b", "a", "a", "b", "a", "a"]})
    found = [(each.subject, each.rows.num_rows) for each in grouped(rows.to_batches(), None)]
    assert found == [("a", 2), ("b", 1), ("a", 2), ("b", 1), ("a", 1)]
