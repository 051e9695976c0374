"""What a sequencer must know of the log it continues."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from envelope.types import NO_OFFSET, Offset, TimestampUs
from jetstream.ingest.batch_ends import BatchEnds
from jetstream.ingest.dedupe import DedupeWindow, Name, name_of, names_of
from jetstream.ingest.sessions import (
    Sessions,
    StoredNames,
    StoredPlace,
    name_in_window,
    only_ids,
    stored_names,
)

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
    sessions: Sessions = field(default_factory=Sessions)
    batch_ends: BatchEnds = field(init=False)

    def __post_init__(self) -> None:
        self.batch_ends = BatchEnds(self.dedupe)

    def pass_over(self, last_timestamp: TimestampUs) -> None:
        """Take in a stored batch whose records have neither message ids nor transaction ids."""
        self.last_timestamp = max(self.last_timestamp, last_timestamp)
        self.last_message_id = None

    def absorb(self, records: pa.RecordBatch, sessions_from: Offset = NO_OFFSET) -> Sequence[StoredPlace]:
        """Take in the next stored batch; return its records that are of a session.

        What records below ``sessions_from`` mean for their sessions is known already.
        """
        if records.num_rows == 0:
            return ()
        last_row = records.num_rows - 1
        last_timestamp = TimestampUs(records["timestamp"][last_row].value)
        self.last_timestamp = max(self.last_timestamp, last_timestamp)
        txids = records["txid"].drop_null()
        if len(txids):
            self.last_txid = txids[len(txids) - 1].as_py()
        ids = only_ids(records)
        if ids is not None and self._recover_new(ids, records):
            self.last_message_id = ids[-1]
            return ()
        names = stored_names(records)
        self.batch_ends.recover(records)
        self.last_message_id = dict(names.message_ids).get(last_row)
        return self._recover(names, records, sessions_from)

    def _recover_new(self, ids: Sequence[bytes], records: pa.RecordBatch) -> bool:
        """Remember records that came together, if all their ids are new; otherwise do nothing."""
        offsets, timestamps = records["offset"], records["timestamp"]
        first, timestamp = Offset(offsets[0].as_py()), timestamps[0].value
        if offsets[-1].as_py() - first != len(ids) - 1 or timestamps[-1].value != timestamp:
            return False
        names = names_of(ids)
        if not self.dedupe.are_new(names):
            return False
        self.dedupe.remember_new(names, first, TimestampUs(timestamp))
        self._expire(TimestampUs(timestamp))
        return True

    def _expire(self, now: TimestampUs) -> None:
        self.dedupe.expire(now)
        self.sessions.expire(now)

    def _recover(
        self, names: StoredNames, records: pa.RecordBatch, sessions_from: Offset
    ) -> Sequence[StoredPlace]:
        """Remember what the records are called."""
        called: dict[int, Name] = {row: name_of(message_id) for row, message_id in names.message_ids}
        called.update((row, name_in_window(place)) for row, place in names.places)
        if not called:
            return ()
        rows = sorted(called)
        offsets: list[int] = records["offset"].take(pa.array(rows)).to_numpy().tolist()
        timestamps = records["timestamp"].take(pa.array(rows)).cast(pa.int64()).to_numpy().tolist()
        stored = {
            row: (Offset(offset), TimestampUs(timestamp))
            for row, offset, timestamp in zip(rows, offsets, timestamps, strict=True)
        }
        for row, (offset, timestamp) in stored.items():
            self.dedupe.remember(called[row], offset, timestamp)
        places = [StoredPlace(place, *stored[row]) for row, place in names.places]
        for place in places:
            if place.offset >= sessions_from:
                self.sessions.store(place)
        self._expire(TimestampUs(timestamps[-1]))
        return places
