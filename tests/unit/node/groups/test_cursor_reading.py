"""What is read of the log of cursors at a time."""

from consumer_groups.cursors import plain_key
from envelope.types import Offset
from jetstream.log.format.batch import encode
from jetstream.log.log import Log
from jetstream.node.groups.cursor_store import _read
from tests.support.logs import Record, begun, records_batch
from tests.support.memory_disk import MemoryDisk


def stored(log: Log, *values: tuple[str, int | None]) -> None:
    """Append one batch of cursors of consumers."""
    records = [
        Record(None if offset is None else b'{"v":1,"offset":%d}' % offset, key=plain_key(consumer, "orders"))
        for consumer, offset in values
    ]
    batch = encode(records_batch(records, log.log_end_offset), log.log_end_offset, log.reader.last_epoch)
    log.writer.append_group((batch,), batch.max_timestamp)


def told(log: Log, start: int, end: int) -> tuple[list[tuple[str, int, int | None]], int]:
    """Consumer, offset of the record and offset of the cursor, of what is read."""
    found, reached = _read(log.reader, Offset(start), Offset(end))
    return [
        (each.key.consumer, each.at, None if each.cursor is None else each.cursor.place.offset)
        for each in found
    ], reached


def test_the_last_record_of_each_key_is_read_below_the_high_watermark() -> None:
    log = begun(MemoryDisk())
    stored(log, ("a", 1), ("b", 2), ("a", 3))
    stored(log, ("b", None), ("c", 4))
    stored(log, ("a", 5))
    assert told(log, 0, 5) == ([("a", 2, 3), ("b", 3, None), ("c", 4, 4)], 5)
    assert told(log, 0, 3) == ([("b", 1, 2), ("a", 2, 3)], 3)
    assert told(log, 5, 6) == ([("a", 5, 5)], 6)
    assert told(log, 6, 6) == ([], 6)


def test_what_was_read_before_is_passed_over_in_a_batch_that_begins_earlier() -> None:
    """Compaction may put both into one."""
    log = begun(MemoryDisk())
    stored(log, ("a", 1), ("b", 2), ("c", 3))
    assert told(log, 2, 3) == ([("c", 2, 3)], 3)


def test_a_batch_that_is_not_committed_as_a_whole_is_left() -> None:
    log = begun(MemoryDisk())
    stored(log, ("a", 1), ("b", 2))
    assert told(log, 0, 1) == ([], 0)


def test_records_that_are_no_cursors_are_passed_over() -> None:
    log = begun(MemoryDisk())
    records = [Record(b"x", key=b"group/g/orders"), Record(b"x"), Record(b"x", key=b"plain/a/orders")]
    batch = encode(records_batch(records), log.log_end_offset, log.reader.last_epoch)
    log.writer.append_group((batch,), batch.max_timestamp)
    assert told(log, 0, 3) == ([("a", 2, None)], 3)
