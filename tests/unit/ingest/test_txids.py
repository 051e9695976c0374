"""Which txids a stream takes: rising ones, by no larger steps than configured."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import TxidDecreasing, TxidTooFar
from jetstream.ingest.batches import BatchContent
from jetstream.ingest.machine import CountKind
from tests.support.envelopes import arrow_stream, batch_of
from tests.support.ingest_machine import IngestHarness, outcomes
from tests.support.messages import Answer, counted, message

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
DECREASING, TOO_FAR = f"error {TxidDecreasing.ack_code}", f"error {TxidTooFar.ack_code}"


def stored(stream: IngestHarness, *txids: int) -> list[object]:
    """Publish these, one by one, and return whether each was stored or why not."""
    return [
        said
        for txid in txids
        for _, said in outcomes(stream.store(message(b"v", "r", Jetstream_Txid=str(txid))))
    ]


def batch(stream: IngestHarness, *txids: int) -> list[Answer]:
    rows = pa.record_batch(
        {"txid": pa.array(txids, pa.int64()), "value": pa.array([b"v"] * len(txids), pa.binary())}
    )
    return stream.store(message(batch_of(arrow_stream(rows), len(txids)), "r"))


@pytest.mark.parametrize("first", [LOWEST, 0, HIGHEST])
def test_the_first_txid_of_a_stream_is_any(first: int) -> None:
    stream = IngestHarness(txid_max_step=1)
    assert stored(stream, first) == [0]


def test_a_step_that_is_too_large_is_refused_counted_and_changes_nothing() -> None:
    stream = IngestHarness(txid_max_step=10)
    assert stored(stream, 5, 15, HIGHEST) == [0, 1, TOO_FAR]
    assert counted(stream.actions, CountKind.REFUSED) == 1
    assert stored(stream, 26, 25, 14) == [TOO_FAR, 2, DECREASING]
    assert stream.column("txid") == [5, 15, 25]


def test_without_a_largest_step_any_is_taken() -> None:
    assert stored(IngestHarness(), LOWEST, HIGHEST) == [0, 1]


def test_each_step_within_a_batch_counts_and_not_their_sum() -> None:
    stream = IngestHarness(txid_max_step=10)
    assert stored(stream, 0) == [0]
    assert [answer.error_code is None for answer in batch(stream, 10, 20, 30, 40)] == [True]
    assert outcomes(batch(stream, 41, 52)) == [("r", TOO_FAR)]
    assert outcomes(batch(stream, 51, 52)) == [("r", TOO_FAR)]
    assert stream.column("txid") == [0, 10, 20, 30, 40]


@given(st.lists(st.integers(LOWEST, HIGHEST), min_size=1, max_size=8))
def test_the_largest_step_of_a_batch_is_that_of_whole_numbers(txids: list[int]) -> None:
    txids.sort()
    steps = [after - before for before, after in pairwise(txids)]
    rows = pa.record_batch({"txid": pa.array(txids, pa.int64())})
    assert BatchContent(rows, txids[0], txids[-1]).largest_txid_step() == max(steps, default=0)
