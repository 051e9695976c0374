"""What the disk thread answers when an error of ours breaks it down."""

import asyncio
import threading

import pytest

from envelope.errors import StorageError
from jetstream.log.memory_disk import MemoryDisk
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.crash import Crash
from jetstream.node.disk_thread import DiskThread, GroupAppend
from tests.support.logs import NOW, batch_for, begun


class OursError(Exception):
    """What no disk raises."""


def broken() -> None:
    raise OursError


def test_what_was_done_before_an_error_of_ours_is_answered_as_done_and_the_rest_as_failed() -> None:
    async def scenario() -> None:
        disk, crash = MemoryDisk(), Crash()
        busy, gate = threading.Event(), threading.Event()
        log = begun(disk)
        thread = DiskThread(SyncScheduler(disk), crash, "broken-disk")

        def stand() -> bool:
            busy.set()
            return gate.wait()

        first = thread.call(stand)
        busy.wait()  # what follows is taken together, behind the first
        stored = GroupAppend(log, [batch_for(log, [b"stored"])], NOW)
        told: list[Exception | None] = []
        thread.append([stored], lambda: told.append(stored.error))
        done, failed, behind = (thread.call(work) for work in (lambda: "done", broken, lambda: "behind"))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(thread.stop())
            await asyncio.sleep(0)
            gate.set()
            # The loop stands still: it reads the answers when the thread has given all of them.
            next(each for each in threading.enumerate() if each.name == "broken-disk").join()
        assert await first
        assert told == [None]
        assert await done == "done"
        for future in (failed, behind):
            with pytest.raises(StorageError, match="internal error"):
                await future
        with pytest.raises(OursError):
            await crash.watch()

    asyncio.run(scenario())
