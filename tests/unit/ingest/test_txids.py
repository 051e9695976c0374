"""Which txids a stream takes: rising ones, by no larger steps than configured, and what an operator set."""

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from envelope.errors import DiskFull, TxidDecreasing, TxidTooFar
from envelope.types import LeaderEpoch, Offset
from jetstream.ingest.batches import BatchContent
from jetstream.ingest.machine import CountKind
from jetstream.ingest.publishers.dedupe import DedupeWindow
from jetstream.ingest.publishers.history import PublisherHistory, TxidMark, last_txid_of
from tests.support.envelopes import arrow_stream, batch_of
from tests.support.ingest_machine import REIGN, IngestHarness, absorb, outcomes
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
@example([LOWEST, HIGHEST])
def test_the_largest_step_of_a_batch_is_that_of_whole_numbers(txids: list[int]) -> None:
    txids.sort()
    steps = [after - before for before, after in pairwise(txids)]
    columns = {"txid": pa.array(txids, pa.int64())}
    batch = BatchContent(b"s", columns, 0, txids[0], txids[-1])
    assert batch.largest_txid_step() == max(steps, default=0)


# --- what an operator set ---------------------------------------------------------------------------------


def set_txid(stream: IngestHarness, txid: int) -> None:
    stream.history.txid_set = TxidMark(REIGN, stream.machine.log_end_offset, txid)


def test_a_txid_that_was_set_is_the_last_one() -> None:
    stream = IngestHarness()
    assert stored(stream, 5, HIGHEST, 6) == [0, 1, DECREASING]
    set_txid(stream, 5)
    assert stored(stream, 4, 6, 5, 6) == [DECREASING, 2, DECREASING, 3]
    set_txid(stream, 100)
    assert stored(stream, 99, 100) == [DECREASING, 4]
    assert stream.column("txid") == [5, HIGHEST, 6, 6, 100]


def test_a_txid_that_was_set_before_any_bounds_the_first() -> None:
    stream = IngestHarness(txid_max_step=10)
    set_txid(stream, 1000)
    assert stored(stream, 999, 1011, 1010) == [DECREASING, TOO_FAR, 0]


def test_what_was_on_its_way_when_it_was_set_counts() -> None:
    stream = IngestHarness()
    assert stored(stream, 50) == [0]
    place = TxidMark(REIGN, Offset(1), 7)
    assert stored(stream, 60) == [1]
    stream.history.txid_set = place
    assert stream.history.last_txid == 60


@pytest.mark.parametrize(
    ("epoch", "offset", "last_txid"),
    [(2, 91, 5), (2, 92, 9), (1, 95, 5), (3, 80, 9)],
    ids=["before it", "behind it", "cut off before it", "behind it in a log that was made shorter"],
)
def test_which_records_count_is_said_by_reign_and_offset(epoch: int, offset: int, last_txid: int) -> None:
    stored = TxidMark(LeaderEpoch(epoch), Offset(offset), 9)
    assert last_txid_of(stored, TxidMark(LeaderEpoch(2), Offset(92), 5)) == last_txid


def test_a_refused_append_does_not_undo_what_was_set() -> None:
    stream = IngestHarness()
    assert stored(stream, HIGHEST) == [0]
    set_txid(stream, 5)
    stream.receive(message(b"v", "r", Jetstream_Txid="8"))
    stream.refuse(DiskFull("full"))
    assert stream.history.last_txid == 5
    assert stored(stream, 6) == [1]


STEPS = st.lists(
    st.tuples(st.sampled_from(["publish", "publish", "set", "refuse", "restart"]), st.integers(0, 5)),
    max_size=30,
)


@given(STEPS)
def test_the_last_txid_is_the_same_however_often_the_log_is_read_back(steps: list[tuple[str, int]]) -> None:
    stream, last, records = IngestHarness(), None, list[pa.RecordBatch]()
    txid_set: TxidMark | None = None
    for step, txid in steps:
        match step:
            case "publish":
                [said] = stored(stream, txid)
                assert (said == DECREASING) == (last is not None and txid < last)
                last = last if said == DECREASING else txid
            case "set":
                set_txid(stream, txid)
                txid_set, last = stream.history.txid_set, txid
            case "refuse":
                stream.receive(message(b"v", "r", Jetstream_Txid="9"))
                stream.refuse(DiskFull("full"))
            case _:
                records += stream.stored
                history = PublisherHistory(DedupeWindow(1, 1))
                for each in records:
                    absorb(history, each)
                stream = IngestHarness(history=history, log_end_offset=history.end)
                stream.history.txid_set = txid_set
        assert stream.history.last_txid == last
