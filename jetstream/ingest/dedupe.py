"""Which message ids a stream has stored lately, so that a retry is answered instead of stored again.

Ids leave by age, counted in the log's own timestamps, so that a clock set back brings none back and a restart
remembers what was remembered before; and by count, so that memory is bounded. Neither happens while an append
is in flight: a rollback finds all that it takes back at the young end.
"""

from collections import deque
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from envelope.headers import MESSAGE_ID
from envelope.types import Offset, TimestampUs

_MICROSECOND: Final = timedelta(microseconds=1)


class DedupeWindow:
    """Message ids by offset, oldest first.

    Invariants:
        D1: every remembered id is in the queue with its offset.
        D2: offsets and timestamps never decrease along the queue.
    """

    def __init__(self, window_us: int, ids_max: int) -> None:
        """Remember the ``ids_max`` newest ids for ``window_us`` microseconds of log time (0: none)."""
        assert window_us >= 0, "a window does not reach into the future"
        assert ids_max > 0, "use a window of 0 to remember nothing"
        self._window_us = window_us
        self._ids_max = ids_max
        self._offsets: dict[bytes, Offset] = {}
        self._queue: deque[tuple[TimestampUs, Offset, bytes]] = deque()
        self._forgotten: TimestampUs | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def window_us(self) -> int:
        """The configured window, microseconds."""
        return self._window_us

    def effective_window_us(self, now: TimestampUs) -> int:
        """Return how far back a repeat is surely found: less than the window if ids left by count."""
        if self._forgotten is None:
            return self._window_us
        return max(0, min(self._window_us, now - self._forgotten))

    def resize(self, window_us: int) -> None:
        """Change the window from now on; what is forgotten stays forgotten."""
        self._window_us = window_us

    def lookup(self, message_id: bytes) -> Offset | None:
        """Return the offset of the record with that id, None if it is not remembered."""
        return self._offsets.get(message_id)

    def remember(self, message_id: bytes, offset: Offset, timestamp: TimestampUs) -> None:
        """Note that the record at ``offset`` has that id; an earlier record with it no longer counts."""
        if self._window_us == 0:
            return
        assert not self._queue or self._queue[-1][0] <= timestamp, "D2: timestamps never decrease"
        assert not self._queue or self._queue[-1][1] < offset, "D2: offsets increase"
        self._offsets[message_id] = offset
        self._queue.append((timestamp, offset, message_id))

    def forget_from(self, log_end_offset: Offset) -> None:
        """Take back all ids of records at ``log_end_offset`` and after: these were not stored."""
        while self._queue and self._queue[-1][1] >= log_end_offset:
            self._remove(*self._queue.pop())

    def expire(self, now: TimestampUs) -> None:
        """Forget what is a window old or older at the log's time ``now``, and what is too much."""
        oldest = now - self._window_us
        queue = self._queue
        while queue and (queue[0][0] <= oldest or len(queue) > self._ids_max):
            self._forgotten = queue[0][0]
            self._remove(*queue.popleft())
        assert len(self._offsets) <= len(queue) <= self._ids_max, "D1: an entry for each id, and a limit"

    def _remove(self, _: TimestampUs, offset: Offset, message_id: bytes) -> None:
        if self._offsets[message_id] == offset:
            del self._offsets[message_id]

    def recover(self, records: pa.RecordBatch) -> None:
        """Remember the ids in a stored batch; batches come in log order."""
        found = message_ids(records)
        if not found:
            return
        rows = pa.array([row for row, _ in found])
        offsets: list[int] = records["offset"].take(rows).to_numpy().tolist()
        timestamps: list[int] = records["timestamp"].take(rows).cast(pa.int64()).to_numpy().tolist()
        for (_, message_id), offset, timestamp in zip(found, offsets, timestamps, strict=True):
            self.remember(message_id, Offset(offset), TimestampUs(timestamp))
        self.expire(TimestampUs(timestamps[-1]))


def message_ids(records: pa.RecordBatch) -> list[tuple[int, bytes]]:
    """Return (row, id) of the records that carry a message id, in order."""
    headers = records["headers"]
    fields = pc.list_flatten(headers)
    if len(fields) == 0:
        return []
    is_id = pc.equal(pc.struct_field(fields, "key"), pa.scalar(MESSAGE_ID))
    rows: list[int] = pc.filter(pc.list_parent_indices(headers), is_id).to_numpy().tolist()
    values: list[bytes | None] = pc.filter(pc.struct_field(fields, "value"), is_id).to_pylist()
    found: dict[int, bytes] = {}
    for row, value in zip(rows, values, strict=True):
        found.setdefault(row, value or b"")  # the first of a repeated header counts
    return [(row, value) for row, value in found.items() if value]


def window_us(window: timedelta) -> int:
    """Return a configured window in microseconds."""
    return window // _MICROSECOND
