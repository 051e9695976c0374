"""Examples of lines; `tests.property.test_record_lines` compares any with what other programs make."""

import json
from typing import Any, get_args

import pyarrow as pa

from jetstream.log.format.csv_lines import csv_lines
from jetstream.log.format.json_lines import event_lines, json_lines
from jetstream.log.format.record_texts import OPTIONAL_COLUMNS
from jetstream.log.format.schema import HEADERS_TYPE, NO_RECORDS, SCHEMA
from jetstream.protocol.requests import Column

PLAIN = {"offset": 7, "timestamp": 1_772_366_400_000_005, "subject": "orders.eu", "value": b'{"a":1}'}
FULL = {
    **PLAIN,
    "key": b"\xfe",
    "headers": [{"key": "A", "value": b"1"}, {"key": "A", "value": b"\xff"}, {"key": "B", "value": None}],
    "txid": 0,
    "value": None,
}


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), SCHEMA)


def test_a_plain_record_is_one_json_object_without_empty_fields() -> None:
    assert bytes(json_lines(batch_of(PLAIN))).decode() == (
        '{"offset":7,"timestamp":"2026-03-01T12:00:00.000005Z","subject":"orders.eu","value":"{\\"a\\":1}"}\n'
    )


def test_a_record_keeps_its_bytes_its_headers_and_its_tombstone_in_json() -> None:
    assert bytes(json_lines(batch_of(FULL), stream="orders/2")).decode() == (
        '{"stream":"orders/2","offset":7,"timestamp":"2026-03-01T12:00:00.000005Z","subject":"orders.eu",'
        '"key_base64":"/g==","headers":[{"key":"A","value":"1"},{"key":"A","value_base64":"/w=="},'
        '{"key":"B","value":null}],"txid":0,"value":null}\n'
    )


def test_what_is_not_asked_for_is_left_out_and_not_null() -> None:
    assert list(json.loads(bytes(json_lines(batch_of(FULL), columns=["txid"])))) == [
        "offset",
        "timestamp",
        "subject",
        "txid",
    ]


def test_what_may_be_left_out_is_what_a_fetch_may_leave_out() -> None:
    assert get_args(Column) == OPTIONAL_COLUMNS


def test_an_event_goes_on_at_its_id() -> None:
    line = bytes(json_lines(batch_of(PLAIN))).decode()
    assert bytes(event_lines(batch_of(PLAIN))).decode() == f"id: 7\ndata: {line}\n"


def test_csv_has_the_same_columns_whatever_the_records_hold() -> None:
    header = "offset,timestamp,subject,key,key_base64,headers,txid,value,value_base64"
    start = '7,"2026-03-01T12:00:00.000005Z","orders.eu"'
    headers = (
        '"[{""key"":""A"",""value"":""1""},{""key"":""A"",""value_base64"":""/w==""},'
        '{""key"":""B"",""value"":null}]"'
    )
    lines = bytes(csv_lines(batch_of(PLAIN, FULL))).decode().splitlines()
    assert lines[0].replace('"', "") == header
    assert lines[1] == start + ',,,,,"{""a"":1}",'
    assert lines[2] == f'{start},,"/g==",{headers},0,,'
    assert (
        bytes(csv_lines(batch_of({**PLAIN, "value": b""}), ["value"], header=False)).decode()
        == f'{start},"",\n'
    )


def test_no_records_are_no_lines_and_in_csv_the_header() -> None:
    assert bytes(json_lines(NO_RECORDS)) == bytes(event_lines(NO_RECORDS)) == b""
    assert bytes(csv_lines(NO_RECORDS, header=False)) == b""
    assert bytes(csv_lines(NO_RECORDS)) == bytes(csv_lines(batch_of(PLAIN))).split(b"\n")[0] + b"\n"


def test_headers_behind_a_null_stay_hidden() -> None:
    # Arrow lets a null list have elements.
    batch = batch_of(PLAIN, FULL)
    headers: Any = batch.column(4)
    lists = pa.ListArray.from_arrays(
        pa.array([0, 2, 3], pa.int32()), headers.values, type=HEADERS_TYPE, mask=pa.array([True, False])
    )
    batch = batch.set_column(4, SCHEMA.field("headers"), lists)
    first, second = bytes(json_lines(batch)).splitlines()
    assert "headers" not in json.loads(first)
    assert json.loads(second)["headers"] == [{"key": "B", "value": None}]
