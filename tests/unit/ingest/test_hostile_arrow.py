"""Batches whose Arrow has numbers in its metadata that cannot be: refused, and at no cost."""

import struct
from collections.abc import Iterator

import pyarrow as pa
import pytest

from envelope.errors import InvalidEnvelope
from envelope.limits import MIB
from jetstream.log.format.message import record_batch_fields
from jetstream.log.format.schema import HEADERS_TYPE
from tests.support.envelopes import Columns, arrow, batch_of, binary, schema_end, with_number
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import message

RECORDS = 2
COLUMNS: Columns = {
    "key": binary(b"k", None),
    "headers": pa.array([[("a", b"b")], None], HEADERS_TYPE),
    "txid": pa.array([1, None], pa.int64()),
    "value": binary(b"abc", None),
}
GOOD = arrow(COLUMNS)
BATCH_AT = schema_end(GOOD)
FIELDS = record_batch_fields(GOOD[BATCH_AT:])

NUMBERS = (-(1 << 63), -(1 << 31), -8, -2, -1, 1 << 32, (1 << 63) - 1)
UNKNOWN = -1
"""As a count of nulls: they are counted by whoever reads."""


def number_at(place: int) -> int:
    return int(struct.unpack_from("<q", GOOD, BATCH_AT + place)[0])


def changed(place: int, number: int) -> bytes:
    return with_number(GOOD, BATCH_AT + place, number)


def pairs(start: int) -> Iterator[int]:
    """The places of a vector's elements, each of two numbers; its count stands before it."""
    (count,) = struct.unpack_from("<I", GOOD, BATCH_AT + start - 4)
    return iter(range(start, start + 16 * count, 16))


NODES = list(pairs(FIELDS.nodes))
BUFFERS = list(pairs(FIELDS.buffers))
UNREAD = [place for place in BUFFERS if number_at(place + 8) == 0]
"""Of arrays without nulls: which are null is not asked."""
READ = [place for place in BUFFERS if place not in UNREAD]

PLACES: dict[str, list[int]] = {
    "Message.bodyLength": [FIELDS.body_length],
    "RecordBatch.length": [FIELDS.row_count],
    "FieldNode.length": NODES,
    "FieldNode.null_count": [place + 8 for place in NODES],
    "Buffer.offset": READ,
    "Buffer.length": [place + 8 for place in READ],
}


def test_the_places_are_those_of_the_numbers() -> None:
    assert (number_at(FIELDS.row_count), len(NODES), len(READ), len(UNREAD)) == (RECORDS, 7, 14, 3)
    assert number_at(FIELDS.body_length) % 8 == 0
    assert [number_at(place) for place in NODES] == [2, 2, 1, 1, 1, 2, 2], "the lists' only field in between"


@pytest.mark.parametrize("field", PLACES)
def test_a_number_that_cannot_be_is_refused_and_costs_nothing(field: str) -> None:
    stream, pool = IngestHarness(), pa.default_memory_pool()
    before, peak = pool.bytes_allocated(), pool.max_memory() or 0
    for place in PLACES[field]:
        for number in NUMBERS:
            if field == "FieldNode.null_count" and number == UNKNOWN:
                continue
            hostile = batch_of(changed(place, number), RECORDS)
            answers = stream.store(message(hostile, "r"))
            assert outcomes(answers) == [("r", f"error {InvalidEnvelope.ack_code}")], (place, number)
    assert pool.bytes_allocated() - before < MIB
    assert (pool.max_memory() or 0) <= max(peak, before + MIB)
    assert outcomes(stream.store(message(batch_of(GOOD, RECORDS), "r"))) == [("r", 1)]


def test_a_number_that_nobody_reads_changes_nothing() -> None:
    places = [(place + 8, UNKNOWN) for place in NODES if number_at(place + 8)]
    places += [(place + half, number) for place in UNREAD for half in (0, 8) for number in NUMBERS]
    for place, number in places:
        stream = IngestHarness()
        answers = stream.store(message(batch_of(changed(place, number), RECORDS), "r"))
        assert outcomes(answers) == [("r", 1)], (place, number)
        for name, column in COLUMNS.items():
            assert stream.column(name) == column.to_pylist(), (name, place, number)
