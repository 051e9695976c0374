"""A txid is found where a look at every record finds it, whatever has become of the log."""

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis.stateful import invariant

from envelope.types import Offset
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.format.schema import SCHEMA
from jetstream.log.log import Log
from jetstream.log.search import first_with_txid, offset_for_txid
from tests.support.example_counts import examples
from tests.support.log_life import LogLife


def looked_at(log: Log) -> dict[int, int]:
    """Return the txid of each kept record that has one, by offset."""
    batches: list[pa.RecordBatch] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        for frame in iter_frames(log.reader.read(offset, 1 << 20, log.log_end_offset)):
            header, records = decode(frame)
            batches.append(records)
            offset = header.next
    rows = pa.Table.from_batches(batches, SCHEMA).to_pylist()
    has_txid = (row for row in rows if row["txid"] is not None and row["offset"] >= log.log_start_offset)
    return {row["offset"]: row["txid"] for row in has_txid}


class TxidModel(LogLife):
    """The model is what `looked_at` finds."""

    @invariant()
    def finds_what_a_look_at_every_record_finds(self) -> None:
        log = self.log
        txids = looked_at(log)
        start, end = log.log_start_offset, log.log_end_offset
        middle = Offset((start + end) // 2)
        for wanted in {edge for txid in txids.values() for edge in (txid, txid + 1)} | {-9, -(1 << 63)}:
            reached = [at for at, txid in txids.items() if txid >= wanted]
            assert offset_for_txid(log.reader, wanted) == min(reached, default=end)
            for low, high in ((middle, end), (start, middle)):
                inside = [at for at in reached if low <= at < high]
                assert first_with_txid(log.reader, wanted, low, high) == min(inside, default=None)


TestTxidSearch = TxidModel.TestCase
TestTxidSearch.settings = settings(max_examples=examples(25), stateful_step_count=15)


@pytest.mark.deep
class TestTxidSearchForLong(TxidModel.TestCase):  # type: ignore[misc,valid-type]  # made by hypothesis
    """The same, longer."""

    settings = settings(max_examples=1000, stateful_step_count=40, deadline=None)
