"""Lines made a column at a time are those that Python makes of each record; CSV and events hold as much."""

import csv
import io
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Collection
from itertools import chain
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from jetstream.log.format.csv_lines import csv_lines
from jetstream.log.format.json_lines import event_lines, json_lines
from jetstream.log.format.record_texts import OPTIONAL_COLUMNS, slices
from jetstream.log.format.schema import SCHEMA
from tests.support.example_counts import examples

Row = dict[str, Any]

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
MICROSECONDS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
"""From year 1 to year 9999."""
TEXTS = st.text(max_size=12) | st.sampled_from(
    ["", '"', "\\", '\\"\\n', "\u2028\u2029\ufeff", "\U0001f600", "\x7f\x80", "".join(map(chr, range(0x20)))]
)
BYTES = (
    TEXTS.map(str.encode)
    | st.binary(max_size=12)
    | st.sampled_from(
        [
            b"\xff",
            b"a\xc0\x80",
            b"\xed\xa0\x80",
            b"\xf4\x90\x80\x80",
            b"\xe2\x80",
            b"\xf0\x9f\x98\x80!",
            bytes(range(256)),
        ]
    )
)
HEADERS = st.lists(
    st.fixed_dictionaries({"key": st.none() | TEXTS, "value": st.none() | BYTES}), max_size=3
) | st.just([{"key": "a", "value": b"1"}, {"key": "a", "value": b"\xff"}])
ROWS = st.fixed_dictionaries(
    {
        "offset": st.integers(0, (1 << 63) - 1),
        "timestamp": MICROSECONDS,
        "subject": TEXTS,
        "key": st.none() | BYTES,
        "headers": st.none() | HEADERS,
        "txid": st.none() | INT64,
        "value": st.none() | BYTES,
    }
)
CUTS = st.tuples(st.integers(0, 3), st.integers(0, 3))
"""Records that are in the columns and not in the batch: before it and after it."""
COLUMNS = st.none() | st.sets(st.sampled_from(OPTIONAL_COLUMNS))


def batch_of(rows: list[Row], cuts: tuple[int, int] = (0, 0)) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return batch.slice(cuts[0], max(0, len(rows) - sum(cuts)))


def reference(row: Row, columns: Collection[str] | None = None, stream: str | None = None) -> str:
    """Return the line of one record as the `json` module writes it."""
    fields: Row = {} if stream is None else {"stream": stream}
    moment = row["timestamp"].replace(tzinfo=None)
    fields |= {
        "offset": row["offset"],
        "timestamp": f"{moment.isoformat(timespec='microseconds')}Z",
        "subject": row["subject"],
    }
    if row["key"] is not None:
        fields |= bytes_field("key", row["key"])
    if row["headers"] is not None:
        fields["headers"] = [
            {"key": header["key"], **bytes_field("value", header["value"])} for header in row["headers"]
        ]
    if row["txid"] is not None:
        fields["txid"] = row["txid"]
    fields |= bytes_field("value", row["value"])
    left_out = set() if columns is None else set(OPTIONAL_COLUMNS) - set(columns)
    kept = {name: field for name, field in fields.items() if name.removesuffix("_base64") not in left_out}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":"))


def bytes_field(name: str, value: bytes | None) -> Row:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


@settings(max_examples=examples(300))
@given(st.lists(ROWS, max_size=8), CUTS, COLUMNS, st.none() | TEXTS)
@example([], (0, 0), None, None)
def test_json_lines_are_those_of_the_json_module(
    rows: list[Row], cuts: tuple[int, int], columns: set[str] | None, stream: str | None
) -> None:
    batch = batch_of(rows, cuts)
    expected = [f"{reference(row, columns, stream)}\n" for row in batch.to_pylist()]
    assert bytes(json_lines(batch, columns, stream)).decode() == "".join(expected)


@settings(max_examples=examples(100))
@given(st.lists(ROWS, max_size=8), CUTS, COLUMNS)
def test_an_event_has_the_offset_as_its_id_and_the_line_as_its_data(
    rows: list[Row], cuts: tuple[int, int], columns: set[str] | None
) -> None:
    batch = batch_of(rows, cuts)
    # A reader of events ends a line at CR, LF or both, and an event at an empty line.
    read = re.split("\r\n|\r|\n", bytes(event_lines(batch, columns)).decode())
    lines = bytes(json_lines(batch, columns)).decode().split("\n")[:-1]
    expected = [
        [f"id: {row['offset']}", f"data: {line}", ""]
        for row, line in zip(batch.to_pylist(), lines, strict=True)
    ]
    assert read == [*chain.from_iterable(expected), ""]


@settings(max_examples=examples(200))
@given(st.lists(ROWS, max_size=8), CUTS, COLUMNS)
def test_a_reader_of_csv_gets_every_byte_back(
    rows: list[Row], cuts: tuple[int, int], columns: set[str] | None
) -> None:
    batch = batch_of(rows, cuts)
    content = bytes(csv_lines(batch, columns))
    names = next(csv.reader(io.StringIO(content.decode(), newline="")))
    wanted = set(OPTIONAL_COLUMNS) if columns is None else columns
    assert names == [
        name
        for name in (
            "offset",
            "timestamp",
            "subject",
            "key",
            "key_base64",
            "headers",
            "txid",
            "value",
            "value_base64",
        )
        if name.removesuffix("_base64") in {"offset", "timestamp", "subject", *wanted}
    ]
    table = arrow_csv.read_csv(
        io.BytesIO(content),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.utf8()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    assert [csv_row(row, wanted) for row in batch.to_pylist()] == [from_csv(row) for row in table.to_pylist()]


@settings(max_examples=examples(100))
@given(st.lists(ROWS, max_size=8), COLUMNS)
def test_two_readers_of_csv_read_the_same(rows: list[Row], columns: set[str] | None) -> None:
    batch = batch_of(rows)
    lines = io.StringIO(bytes(csv_lines(batch, columns, header=False)).decode(), newline="")
    read = list(csv.reader(lines))
    assert [row[:3] for row in read] == [
        [str(row["offset"]), json.loads(reference(row))["timestamp"], row["subject"]]
        for row in batch.to_pylist()
    ]


def csv_row(row: Row, wanted: set[str]) -> Row:
    line = json.loads(reference(row))
    return {name: line[name] for name in ("offset", "timestamp", "subject")} | {
        name: line.get("headers") if name == "headers" else row[name]
        for name in OPTIONAL_COLUMNS
        if name in wanted
    }


def from_csv(row: Row) -> Row:
    """Return what a reader makes of a line by the rules of `csv_lines`."""
    read: Row = {"offset": int(row["offset"]), "timestamp": row["timestamp"], "subject": row["subject"]}
    for name in ("key", "value"):
        if name in row:
            text, encoded = row[name], row[f"{name}_base64"]
            assert text is None or encoded is None
            read[name] = (
                b64decode(encoded) if encoded is not None else None if text is None else text.encode()
            )
    if "headers" in row:
        read["headers"] = None if row["headers"] is None else json.loads(row["headers"])
    if "txid" in row:
        read["txid"] = None if row["txid"] is None else int(row["txid"])
    return read


@settings(max_examples=examples(100))
@given(st.lists(ROWS, min_size=1, max_size=8), st.integers(1, 2000))
def test_a_batch_in_slices_makes_the_same_lines(rows: list[Row], bytes_max: int) -> None:
    batch = batch_of(rows)
    parts = list(slices(batch, bytes_max))
    assert all(part.nbytes <= bytes_max or part.num_rows == 1 for part in parts)
    for lines_of in (json_lines, event_lines):
        assert b"".join(bytes(lines_of(part)) for part in parts) == bytes(lines_of(batch))


@settings(max_examples=examples(50))
@given(st.lists(INT64, min_size=1, max_size=5))
def test_a_moment_outside_of_the_calendar_is_still_a_line(moments: list[int]) -> None:
    rows = [{"offset": 0, "timestamp": moment, "subject": "s"} for moment in moments]
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    lines = bytes(json_lines(batch)).decode().splitlines()
    assert [json.loads(line)["subject"] for line in lines] == ["s"] * len(moments)
