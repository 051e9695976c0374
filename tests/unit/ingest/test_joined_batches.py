"""Batch envelopes that come together and are small share a batch of the log."""

from typing import Any

import pyarrow as pa

from envelope.envelopes import HeaderFields, encode_batch
from envelope.types import LeaderEpoch
from jetstream.ingest.sequencer import JOINED_BYTES_MAX
from jetstream.log.format.plain_batch_encoder import encode_records
from jetstream.log.format.schema import HEADERS_TYPE
from tests.support.envelopes import Columns, arrow, binary
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import appends, message


def batch(*values: bytes | None, message_id: bytes | None = None, **columns: "pa.Array[Any]") -> bytes:
    table: Columns = {"value": binary(*values), **columns}
    fields: HeaderFields = {} if message_id is None else {"message_id": message_id}
    return encode_batch(arrow(table), len(values), **fields)


def batches_of_log(stream: IngestHarness, *payloads: bytes) -> list[tuple[int, int]]:
    """Return the offsets of the batches of the log that messages become which come together."""
    stream.receive(*(message(payload) for payload in payloads))
    (append,) = appends(stream.actions)
    encoded = encode_records(append.records, append.base, LeaderEpoch(1))
    stream.append()
    return [(each.base, each.next) for each in encoded]


def test_batch_envelopes_share_a_batch_of_the_log_with_each_other() -> None:
    payloads = b"0", b"1", batch(b"2", b"3"), batch(b"4"), b"5", batch(b"6"), batch(b"7", b"8")
    assert batches_of_log(IngestHarness(), *payloads) == [(0, 2), (2, 5), (5, 6), (6, 9)]


def test_a_batch_envelope_that_is_large_is_in_one_batch_of_the_log_by_itself() -> None:
    large = batch(bytes(JOINED_BYTES_MAX // 2), bytes(JOINED_BYTES_MAX // 2))
    payloads = batch(b"0"), batch(b"1"), large, large, batch(b"6"), batch(b"7")
    assert batches_of_log(IngestHarness(), *payloads) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_batch_envelopes_with_other_columns_and_subjects_keep_theirs_beside_each_other() -> None:
    stream = IngestHarness()
    headers = pa.array([[("a", b"1")], None], HEADERS_TYPE)
    answers = stream.store(
        message(batch(b"0", key=binary(b"k")), "a", subject="orders.eu"),
        message(batch(b"1", None, message_id=b"id"), "b"),
        message(batch(b"3", b"4", headers=headers, txid=pa.array([None, 7])), "c", subject="orders.é"),
    )
    assert outcomes(answers) == [("a", 0), ("b", 2), ("c", 4)]
    assert stream.values == [b"0", b"1", None, b"3", b"4"]
    assert stream.column("offset") == list(range(5))
    assert stream.column("key") == [b"k", None, None, None, None]
    assert stream.column("txid") == [None, None, None, None, 7]
    assert stream.column("subject") == ["orders.eu", "orders.new", "orders.new", "orders.é", "orders.é"]
    of_id = [{"key": "Nats-Msg-Id", "value": b"id"}, {"key": "Jetstream-Batch-Records", "value": b"2"}]
    assert stream.column("headers") == [None, None, of_id, [{"key": "a", "value": b"1"}], None]
