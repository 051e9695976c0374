"""Readers on one thread while the writer appends, rolls and removes on another."""

import threading

from envelope.errors import OffsetOutOfRange, UnavailableError
from envelope.types import Offset
from jetstream.log.batch import decode, iter_frames
from jetstream.log.log import Log, LogConfig
from jetstream.log.memory_disk import MemoryDisk
from tests.support.logs import NOW, append, begun

BATCHES = 600


def write(log: Log, done: threading.Event) -> None:
    try:
        for number in range(BATCHES):
            append(log, [b"%d" % offset for offset in range(number * 3, number * 3 + 3)], NOW + number)
            log.sync()
            if number % 50 == 49:
                log.checkpoint()
                log.truncate_before(Offset(number - number % 3), log.log_end_offset)
    finally:
        done.set()


def check_reads(log: Log) -> int:
    """Read once around the log; return how many records were seen."""
    seen = 0
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            body = log.read(offset, 4000, log.log_end_offset)
        except (OffsetOutOfRange, UnavailableError):
            offset = log.log_start_offset  # removed meanwhile
            continue
        for frame in iter_frames(body):
            header, records = decode(frame)
            assert header.base <= offset < header.next
            values = records.column(6).to_pylist()
            assert values == [b"%d" % number for number in range(header.base, header.next)]
            offset = header.next
            seen += len(values)
    return seen


def test_readers_see_whole_batches_in_order_while_the_writer_works() -> None:
    log = begun(MemoryDisk(), LogConfig(segment_bytes=20_000))
    done = threading.Event()
    writer = threading.Thread(target=write, args=(log, done))
    writer.start()
    seen = 0
    while not done.is_set():
        seen += check_reads(log)
    writer.join()
    assert log.failed is None
    assert log.log_end_offset == 3 * BATCHES
    assert check_reads(log) == 3 * BATCHES - log.log_start_offset
    assert seen > 0
