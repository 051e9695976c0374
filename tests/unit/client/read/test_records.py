"""Records and batches as readers see them."""

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.client.read.records import RECORDS_AT_ONCE, Record, before, records_of, to_timestamp, trimmed
from jetstream.log.format.schema import SCHEMA
from tests.support.sockets import records_batch


def offsets(batch: pa.RecordBatch) -> list[int]:
    return [offset for offset in batch.column(0).to_pylist() if offset is not None]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, [5, 6, 7, 8]),
        (5, 9, [5, 6, 7, 8]),
        (6, 8, [6, 7]),
        (7, None, [7, 8]),
        (9, None, []),
        (0, 5, []),
        (8, 6, []),
    ],
)
def test_a_batch_is_cut_to_the_exact_range(start: int, end: int | None, expected: list[int]) -> None:
    batch = records_batch(5, [b"v"] * 4)
    assert offsets(trimmed(batch, Offset(start), None if end is None else Offset(end))) == expected


def test_a_range_is_cut_by_offset_and_not_by_position() -> None:
    """After compaction a batch has gaps."""
    batch = records_batch(0, [b"v"] * 10).take(pa.array([0, 4, 9]))
    assert offsets(trimmed(batch, Offset(1), Offset(9))) == [4]


def test_a_batch_is_cut_by_time() -> None:
    batch = records_batch(0, [b"v"] * 4, timestamp=100)
    assert offsets(before(batch, TimestampUs(102))) == [0, 1]
    assert offsets(before(batch, TimestampUs(100))) == []
    assert offsets(before(batch, TimestampUs(999))) == [0, 1, 2, 3]


def test_records_have_every_column_of_their_batch() -> None:
    first, second = records_of(
        records_batch(3, [b"a", None], timestamp=1_500_000), LeaderEpoch(7), "orders/2"
    )
    assert first == Record(
        offset=Offset(3),
        timestamp=TimestampUs(1_500_000),
        subject="s.3",
        key=b"k0",
        headers=(("n", b"3"),),
        txid=3,
        value=b"a",
        epoch=LeaderEpoch(7),
        stream="orders/2",
    )
    assert first.time == datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)
    assert second.value is None


def test_records_of_a_long_batch_are_those_of_its_parts() -> None:
    count = 2 * RECORDS_AT_ONCE + 3
    batch = records_batch(10, [b"%d" % row for row in range(count)])
    records = list(records_of(batch, LeaderEpoch(1), "orders"))
    assert [record.offset for record in records] == list(range(10, 10 + count))
    assert [record.value for record in records] == [b"%d" % row for row in range(count)]
    assert [record.headers for record in records] == [(("n", b"%d" % (10 + row)),) for row in range(count)]


def test_headers_keep_their_order_repeats_and_nulls() -> None:
    given = [
        [{"key": "b", "value": b"1"}, {"key": "a", "value": None}, {"key": "b", "value": b"2"}],
        None,
        [],
        [{"key": "c", "value": b""}],
    ]
    batch = records_batch(0, [b"v"] * 4)
    batch = batch.set_column(4, SCHEMA.field(4), pa.array(given, SCHEMA.field(4).type))
    expected = [(("b", b"1"), ("a", None), ("b", b"2")), (), (), (("c", b""),)]
    assert [record.headers for record in records_of(batch, LeaderEpoch(1), "orders")] == expected
    assert [record.headers for record in records_of(batch.slice(1), LeaderEpoch(1), "orders")] == expected[1:]
    assert [record.headers for record in records_of(batch.slice(0, 1), LeaderEpoch(1), "orders")] == expected[
        :1
    ]


def test_a_moment_is_exact_to_the_microsecond_in_any_zone() -> None:
    assert to_timestamp(datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)) == 1_767_323_045_678_901
    assert to_timestamp(datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))) == 0
    assert to_timestamp(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)) == -1
    with pytest.raises(ValueError, match="time zone"):
        to_timestamp(datetime(2026, 1, 1))  # noqa: DTZ001 - the point
