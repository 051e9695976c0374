"""How many records the batches had that came in envelopes: a repeat is answered with all their offsets."""

from array import array
from bisect import bisect_left
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from envelope.headers import BATCH_RECORDS
from envelope.limits import DEDUPE_IDS_MAX, ENVELOPE_RECORDS_MAX
from envelope.types import Offset
from jetstream.ingest.publishers.dedupe import DedupeWindow

KEPT_MIN: Final = DEDUPE_IDS_MAX
"""Of a stream that remembers fewer ids; at most twice as many are kept."""


class BatchEnds:
    """Numbers of records by the offset of the last one, ascending; 16 bytes a batch.

    As many are kept as there are ids to be repeated; at most twice as many.
    A batch is not forgotten with its id but later, which harms nobody: only offsets of repeats are asked for.
    """

    def __init__(self, dedupe: DedupeWindow, kept_min: int = KEPT_MIN) -> None:
        """Keep as many as ``dedupe`` remembers names, but at least ``kept_min``."""
        self._dedupe = dedupe
        self._kept_min = kept_min
        self._ends: array[int] = array("q")
        self._records: array[int] = array("q")

    def records_ending_at(self, offset: Offset) -> int:
        """Return how many records came together with the one at ``offset``, it and those before it."""
        place = bisect_left(self._ends, offset)
        is_end = place < len(self._ends) and self._ends[place] == offset
        return self._records[place] if is_end else 1

    def remember(self, offset: Offset, records: int) -> None:
        """Note that a batch of so many ``records`` ends with the one at ``offset``."""
        assert not self._ends or self._ends[-1] < offset, "batches come in the order of their offsets"
        kept = max(self._kept_min, self._dedupe.names_max)
        if len(self._ends) >= 2 * kept:
            del self._ends[:-kept], self._records[:-kept]
        self._ends.append(offset)
        self._records.append(records)

    def forget_from(self, log_end_offset: Offset) -> None:
        """Take back all batches that end at ``log_end_offset`` or after it: these were not stored."""
        place = bisect_left(self._ends, log_end_offset)
        del self._ends[place:], self._records[place:]

    def recover(self, records: pa.RecordBatch) -> None:
        """Remember the batches in a stored batch; these come in log order."""
        headers = records["headers"]
        fields = pc.list_flatten(headers)
        if len(fields) == 0:
            return
        is_end = pc.equal(pc.struct_field(fields, "key"), pa.scalar(BATCH_RECORDS))
        rows = pc.filter(pc.list_parent_indices(headers), is_end)
        offsets: list[int] = records["offset"].take(rows).to_numpy().tolist()
        counts: list[bytes | None] = pc.filter(pc.struct_field(fields, "value"), is_end).to_pylist()
        for offset, count in zip(offsets, counts, strict=True):
            # A header of that name may be older than its meaning: then it says nothing.
            is_ours = count is not None and count.isdigit() and 1 < int(count[:9]) <= ENVELOPE_RECORDS_MAX
            if is_ours and not (self._ends and self._ends[-1] >= offset):
                self.remember(Offset(offset), int(count or b""))
