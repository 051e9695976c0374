"""What a mirror publishes of the source's records."""

import pyarrow as pa
import pytest

from envelope.envelopes import decode
from envelope.errors import SourceTruncated
from envelope.headers import MESSAGE_HEADERS
from jetstream.client.mirror.mirrored_rows import (
    are_few,
    are_named,
    check_witness,
    last_record,
    mirrored,
    singly,
)
from jetstream.client.mirror.positions import LastRecord
from tests.support.logs import Record, records_batch

Headers = list[tuple[str, bytes]] | None
Row = tuple[str, bytes | None, Headers, int | None, bytes | None]
"""Subject, key, headers, txid, value; a row's time is its offset plus a thousand."""


def batch(*rows: Row, base: int = 0) -> pa.RecordBatch:
    return records_batch(
        [
            Record(value, subject, key, headers, txid, timestamp=offset + 1000)
            for offset, (subject, key, headers, txid, value) in enumerate(rows, base)
        ],
        base,
    )


def plain(subject: str = "a", headers: Headers = None, txid: int | None = None) -> Row:
    return subject, None, headers, txid, b"v"


def headers_of(rows: pa.RecordBatch) -> list[list[tuple[str, bytes]]]:
    return [
        [(pair["key"], pair["value"]) for pair in row or ()] for row in rows.column("headers").to_pylist()
    ]


def test_neighbours_on_one_subject_come_together() -> None:
    found = list(mirrored(batch(*map(plain, "aabbba"))))
    assert [(subject, rows.num_rows) for subject, rows in found] == [("a", 2), ("b", 3), ("a", 1)]


def test_a_txid_below_the_one_before_begins_anew() -> None:
    txids = [None, 5, None, 5, 4, None, 9, -1]
    found = list(mirrored(batch(*(plain(txid=txid) for txid in txids))))
    assert [rows.column("txid").to_pylist() for _, rows in found] == [txids[:4], txids[4:7], txids[7:]]


def test_the_time_of_the_source_is_behind_the_other_headers() -> None:
    [(_, rows)] = mirrored(
        batch(
            plain(headers=[("Color", b"\xff"), ("Color", b"2")]),
            plain(),
            plain(headers=[]),
            plain(headers=[("Jetstream-Source-Time", b"7")]),
            base=4,
        )
    )
    assert headers_of(rows) == [
        [("Color", b"\xff"), ("Color", b"2"), ("Jetstream-Source-Time", b"1004")],
        [("Jetstream-Source-Time", b"1005")],
        [("Jetstream-Source-Time", b"1006")],
        [("Jetstream-Source-Time", b"7"), ("Jetstream-Source-Time", b"1007")],
    ]


def test_a_part_of_a_batch_has_its_own_headers_and_no_others() -> None:
    whole = batch(*(plain(headers=[("N", b"%d" % number)]) for number in range(5)))
    [(_, rows)] = mirrored(whole.slice(2, 2))
    assert [row[0] for row in headers_of(rows)] == [("N", b"2"), ("N", b"3")]


def test_headers_that_would_ask_for_something_have_another_name() -> None:
    [(_, rows)] = mirrored(batch(*(plain(headers=[(name, b"1"), ("X", b"2")]) for name in MESSAGE_HEADERS)))
    for name, row in zip(MESSAGE_HEADERS, headers_of(rows), strict=True):
        assert row[:2] == [(f"Jetstream-Source-{name}", b"1"), ("X", b"2")]


def test_columns_without_values_are_left_out() -> None:
    [(_, rows)] = mirrored(batch(("a", None, None, None, None)))
    assert rows.schema.names == ["headers", "value"]
    [(_, rows)] = mirrored(batch(("a", b"k", None, 7, b"v")))
    assert rows.schema.names == ["key", "headers", "txid", "value"]


def test_a_few_small_records_go_in_envelopes_of_their_own() -> None:
    source = batch(("a", b"k", [("Twice", b"\xff"), ("Twice", b"")], -7, None), ("a", None, None, None, b""))
    [(_, rows)] = mirrored(source)
    assert are_few(rows)
    first, second = map(decode, singly(rows))
    assert first is not None
    assert second is not None
    assert (first.key, first.txid, first.tombstone) == (b"k", -7, True)
    assert first.headers == [("Twice", b"\xff"), ("Twice", b""), ("Jetstream-Source-Time", b"1000")]
    assert (second.key, second.txid, second.tombstone, second.content(100)) == (None, None, False, b"")


def test_a_record_with_a_large_value_is_alone() -> None:
    large: Row = ("a", None, None, None, b"x" * (512 * 1024 + 1))
    found = list(mirrored(batch(*[plain()] * 5, large, large, *[plain()] * 6)))
    assert [rows.num_rows for _, rows in found] == [5, 1, 1, 6]
    assert [are_few(rows) for _, rows in found] == [False, True, True, False]


def test_many_records_and_large_headers_go_in_an_envelope_of_many() -> None:
    for rows in ([plain()] * 5, [plain(headers=[("N", b"x" * 40_000)])]):
        [(_, many)] = mirrored(batch(*rows))
        assert not are_few(many)


def test_a_header_without_a_name_is_noticed() -> None:
    rows = batch(plain(), plain(headers=[("N", b"1"), ("", b"2")]), plain(headers=[("N", b"")]))
    assert [are_named(rows.slice(start, 1)) for start in range(3)] == [True, False, True]
    assert not are_named(rows)


def test_large_headers_of_a_value_that_no_envelope_of_many_has_room_for_go_in_one_of_its_own() -> None:
    for mebibytes, is_alone in ((2, False), (4, True)):
        row: Row = ("a", None, [("N", b"x" * 60_000)], None, b"x" * (mebibytes << 20))
        [(_, rows)] = mirrored(batch(row))
        assert are_few(rows) is is_alone


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (None, LastRecord(None, None)),
        ([("Jetstream-Session", b"s"), ("Jetstream-Sequence", b"42")], LastRecord("s", 42)),
        ([("Jetstream-Session", b"\xff"), ("Jetstream-Sequence", b"x")], LastRecord("\\xff", None)),
    ],
)
def test_the_last_record_of_a_target_tells_its_session(headers: Headers, told: LastRecord) -> None:
    assert last_record(batch(plain(headers=headers))) == told


def test_a_record_that_is_no_copy_of_the_sources_is_noticed() -> None:
    source = batch(("a", b"k", None, 7, b"v"), base=3)
    time = ("Jetstream-Source-Time", b"1003")
    check_witness(source, batch(("a", b"k", [time, ("Jetstream-Session", b"s")], 7, b"v"), base=90))
    for other in (
        ("b", b"k", [time], 7, b"v"),
        ("a", None, [time], 7, b"v"),
        ("a", b"k", [time], None, b"v"),
        ("a", b"k", [time], 7, None),
        ("a", b"k", [("Jetstream-Source-Time", b"1004")], 7, b"v"),
        ("a", b"k", None, 7, b"v"),
    ):
        with pytest.raises(SourceTruncated, match="offset 3"):
            check_witness(source, batch(other))
