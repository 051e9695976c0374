"""Reads the last record of each key of a stretch of a key-compacted log, on a reader thread."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from envelope.limits import MIB
from envelope.types import Offset, TimestampUs
from jetstream.log.format.batch import decode, iter_frames
from jetstream.log.reader import LogReader

_READ_BYTES: Final = 4 * MIB
"""Of the log, read by one job on a thread."""


class KeyedRecord(NamedTuple):
    """A record of a key; its value is None if it is a tombstone."""

    key: bytes | None
    value: bytes | None
    offset: Offset
    timestamp: TimestampUs


def read_latest(log: LogReader, offset: Offset, end: Offset) -> tuple[Sequence[KeyedRecord], Offset]:
    """Return the next records below ``end``, the last of each key, in their order, and the offset after them.

    That is ``offset`` again if the next batch reaches beyond ``end``.

    Raises:
        PlanAgain: the log was written anew meanwhile.
        CorruptDataError, StorageError: they cannot be read.
    """
    start = max(offset, log.log_start_offset)
    batches: list[pa.RecordBatch] = []
    reached = start
    for frame in iter_frames(log.read(start, _READ_BYTES, end)):
        header, records = decode(frame)
        reached = header.next
        # Compaction may have put into one batch what was read before with what was not.
        batches.append(records.slice(int(records.column(0).to_numpy().searchsorted(start))))
    return (tuple(_last_of_each_key(batches)), reached) if batches else ((), reached)


def _last_of_each_key(batches: Sequence[pa.RecordBatch]) -> Iterator[KeyedRecord]:
    table = pa.Table.from_batches(batches).select(["key", "value", "offset", "timestamp"])
    last = table.group_by("key").aggregate([("offset", "max")])["offset_max"].combine_chunks()
    table = table.filter(pc.is_in(table["offset"], value_set=last))
    columns = (
        table["key"].to_pylist(),
        table["value"].to_pylist(),
        table["offset"].to_pylist(),
        table["timestamp"].cast(pa.int64()).to_pylist(),
    )
    return map(KeyedRecord._make, zip(*columns, strict=True))
