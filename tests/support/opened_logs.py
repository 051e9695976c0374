"""A follower's log with a short dedupe window, and what is appended to it."""

from collections.abc import Sequence
from datetime import timedelta

from envelope.headers import MESSAGE_ID
from envelope.types import LeaderEpoch, Offset, SyncMode
from jetstream.log.format.batch import BatchFlags, encode, verified_batches
from jetstream.node.disk.appends import FollowerAppend
from jetstream.node.disk.open_log import OpenedLog, open_log
from metadata.stream_config import StreamConfig
from tests.support.logs import DIRECTORY, NOW, Record, records_batch
from tests.support.memory_disk import MemoryDisk

WINDOW_US = 1000
CONFIG = StreamConfig(
    name="orders", subject="orders.>", dedupe_window=timedelta(microseconds=WINDOW_US), sync=SyncMode.ALWAYS
)


def frame(base: int, records: Sequence[Record], epoch: int = 1) -> bytes:
    """Return one sealed batch from ``base`` on; the first begins a segment."""
    batch = encode(records_batch(records, base), Offset(base), LeaderEpoch(epoch))
    return bytes(batch.seal(BatchFlags.ROLL if base == 0 else BatchFlags(0)))


def record(number: int, txid: int | None = None, *, with_id: bool = True) -> Record:
    """Return a record whose id is its number, 100 us after the one before."""
    headers = [(MESSAGE_ID, b"id%d" % number)] if with_id else None
    return Record(value=b"%d" % number, headers=headers, txid=txid, timestamp=NOW + 100 * number)


def opened(disk: MemoryDisk) -> OpenedLog:
    """Open the log on ``disk``, or begin it."""
    return open_log(disk, DIRECTORY, CONFIG, NOW, "tail")


def follow(log: OpenedLog, *frames: bytes) -> None:
    """Append frames, sync them, and replay them, as a follower."""
    data = b"".join(frames)
    log.log.writer.append_sealed(verified_batches(data), NOW)
    log.log.writer.sync()
    log.replay_batches(verified_batches(data))


def take_in(log: OpenedLog, append: FollowerAppend) -> None:
    """Write an append of a follower, sync it, and replay it."""
    append.write()
    log.log.writer.sync()
    append.replay()
