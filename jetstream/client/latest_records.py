"""The last record of each key of what was read: a column at a time, in Arrow."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jetstream.log.format.schema import SCHEMA

_ROWS_MIN: Final = 65_536
"""So many are gathered at least before those that are replaced are dropped."""


class LatestRecords:
    """Filled in the order of offsets. Records without a key are nobody's last; a tombstone deletes its key.

    Holds at most twice as many rows as there are keys, and a few more.
    """

    def __init__(self) -> None:
        self._kept = SCHEMA.empty_table()
        self._new: list[pa.RecordBatch] = []
        self._new_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in records that come after all others."""
        self._new.append(batch)
        self._new_rows += batch.num_rows
        if self._new_rows > max(_ROWS_MIN, self._kept.num_rows):
            self._reduce()

    def table(self) -> pa.Table:
        """Return the last record of each key that is not deleted, by offset."""
        self._reduce()
        return self._kept

    def _reduce(self) -> None:
        table = pa.concat_tables([self._kept, pa.Table.from_batches(self._new, SCHEMA)])
        self._new, self._new_rows = [], 0
        keyed = table.filter(pc.is_valid(table["key"]))
        last = keyed.select(["key", "offset"]).group_by("key").aggregate([("offset", "max")])
        is_last = pc.is_in(keyed["offset"], value_set=last["offset_max"].combine_chunks())
        self._kept = keyed.filter(pc.and_(is_last, pc.is_valid(keyed["value"]))).combine_chunks()
