"""What a sequencer must know of the log it continues."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from envelope.types import NO_OFFSET, Offset, TimestampUs
from jetstream.ingest.dedupe import DedupeWindow, message_ids

_NO_TIMESTAMP: Final = TimestampUs(0)


@dataclass(slots=True)
class History:
    """The log's past as far as it decides about new messages.

    Fill it by `absorb`, in log order, with the stored batches of at least one dedupe window before the end.
    """

    dedupe: DedupeWindow
    high_watermark: Offset = NO_OFFSET
    """First offset not known to be committed; repeats of records below it are acked at once."""
    last_timestamp: TimestampUs = _NO_TIMESTAMP
    last_txid: int | None = None
    last_message_id: bytes | None = None
    """Id of the log's last record, None if that has none."""

    def pass_over(self, last_timestamp: TimestampUs) -> None:
        """Take in a stored batch whose records have neither message ids nor transaction ids."""
        self.last_timestamp = max(self.last_timestamp, last_timestamp)
        self.last_message_id = None

    def absorb(self, records: pa.RecordBatch) -> None:
        """Take in the next stored batch; an empty one changes nothing."""
        if records.num_rows == 0:
            return
        last_row = records.num_rows - 1
        self.dedupe.recover(records)
        last_timestamp = TimestampUs(records["timestamp"][last_row].value)
        self.last_timestamp = max(self.last_timestamp, last_timestamp)
        txids = records["txid"].drop_null()
        if len(txids):
            self.last_txid = txids[len(txids) - 1].as_py()
        self.last_message_id = dict(message_ids(records.slice(last_row))).get(0)
