"""A disk thread that runs, and what it is given to append."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from envelope.errors import JetstreamError
from envelope.headers import MESSAGE_ID
from envelope.types import LeaderEpoch, Offset
from jetstream.log.format.batch import BatchFlags, encode
from jetstream.log.inline_commits import InlineCommitPolicy
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.appends import AnyAppend
from jetstream.node.disk.open_log import OpenedLog, open_log
from jetstream.node.disk.thread import DiskThread
from jetstream.node.runtime.crash import Crash
from metadata.stream_config import StreamConfig
from tests.support.logs import DIRECTORY, NOW, Record, filled, records_batch
from tests.support.memory_disk import MemoryDisk


class OursError(Exception):
    """What no disk raises."""


def broken() -> None:
    raise OursError


CONFIG = StreamConfig(name="orders", subject="orders.>")


class UntimedCommits(InlineCommitPolicy):
    """Does not mind how long a commit took: a test's process may be held up anywhere."""

    def took(self, seconds: float, now: float, *, failed: bool) -> None:
        """See `InlineCommitPolicy.took`."""
        super().took(0.0, now, failed=failed)


class NoInlineCommits(InlineCommitPolicy):
    """Leaves all commits to the thread."""

    def allows(
        self, logs: int, size: int, now: float, *, is_followed: bool = False, sync_seconds: float = 0.0
    ) -> bool:
        """See `InlineCommitPolicy.allows`."""
        return False


@contextlib.asynccontextmanager
async def running(disk: MemoryDisk) -> AsyncIterator[DiskThread]:
    """Run a disk thread for the block, on a disk whose commits take no time."""
    thread = DiskThread(SyncScheduler(disk, lambda: 0.0), Crash(), inline_commits=UntimedCommits())
    yield thread
    await thread.stop()


async def ended(thread: DiskThread, *appends: AnyAppend) -> list[JetstreamError | None]:
    """Hand appends over together, and return their outcomes."""
    done = asyncio.Event()
    thread.append(appends, done.set)
    await done.wait()
    return [append.error for append in appends]


async def appended(thread: DiskThread, *appends: AnyAppend) -> list[JetstreamError | None]:
    """Do as `ended`, and return when what follows from them is done too."""
    outcomes = await ended(thread, *appends)
    await thread.call(lambda: None)
    return outcomes


def frames(count: int) -> list[bytes]:
    """Return a leader's batches of one record each."""
    leader = filled(MemoryDisk(), count)
    return [leader.reader.read(Offset(offset), 1, Offset(count)) for offset in range(count)]


def following(disk: MemoryDisk) -> OpenedLog:
    return open_log(disk, DIRECTORY, CONFIG, NOW, "tail")


def with_id(base: int) -> bytes:
    """A batch of one record with a message id, which has to be decoded to be learnt."""
    record = Record(value=b"value", headers=[(MESSAGE_ID, b"id%d" % base)], timestamp=NOW + base)
    batch = encode(records_batch([record], base), Offset(base), LeaderEpoch(1))
    return bytes(batch.seal(BatchFlags.ROLL if base == 0 else BatchFlags(0)))
