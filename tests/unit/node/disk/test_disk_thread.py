"""What the disk thread tells of appends, and what it answers when an error of ours breaks it down."""

import asyncio
import os
import signal
import threading
from functools import partial

import pytest

from envelope.errors import CorruptDataError, DiskFull, FsyncFailed, StorageError, StreamOffline
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.fetch.catch_up_scheduler import SHORT_TURN_BYTES, TURN_BYTES, CatchUpScheduler
from jetstream.log.format.batch import BatchFlags, encode, verified_batches
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.appends import FollowerAppend, GroupAppend
from jetstream.node.disk.open_log import open_log
from jetstream.node.disk.thread import DiskThread
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from tests.support.disk_threads import (
    CONFIG,
    OursError,
    appended,
    broken,
    ended,
    following,
    frames,
    running,
    with_id,
)
from tests.support.held_disk import HeldDisk
from tests.support.logs import NOW, batch_for, begun, values_batch
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk
from tests.support.sockets import until


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
        await asyncio.to_thread(busy.wait)  # what follows is taken together, behind the first
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


# --- what is told, and when -------------------------------------------------------------------------------


def test_who_asks_is_told_that_an_append_is_written_while_it_is_synced() -> None:
    async def scenario() -> None:
        disk = HeldDisk()
        log, opened = begun(disk), open_log(disk, "copy", CONFIG, NOW, "tail")
        opened.log.writer.append_sealed(verified_batches(frames(1)[0]), NOW)
        opened.log.writer.sync()
        told: list[str] = []
        one = GroupAppend(log, [batch_for(log, [b"one"])], NOW, written=lambda: told.append("one"))
        silent = GroupAppend(log, [batch_for(log, [b"other"])], NOW)
        other = FollowerAppend(opened, frames(2)[1], NOW)

        def written() -> None:
            told.append("other")
            assert (opened.log.log_end_offset, opened.log.writer.durable_end) == (2, 1)
            disk.let_go.set()

        other.written = written
        disk.let_go.clear()
        async with running(disk) as thread:
            assert (await appended(thread, one, silent, other))[::2] == [None, None]
            assert isinstance(silent.error, DiskFull), "it was made for the same place"
        assert told == ["one", "other"]
        assert opened.log.writer.durable_end == 2

    asyncio.run(scenario())


def test_what_is_refused_is_not_told_as_written_nor_what_comes_behind_it() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        opened = following(disk)
        first, second, third = frames(3)
        told: list[str] = []
        async with running(disk) as thread:
            assert await appended(thread, FollowerAppend(opened, first, NOW)) == [None]
            disk.faults[disk.calls + 1] = Fault(FaultKind.SHORT_WRITE, 100)
            refused, behind = FollowerAppend(opened, second, NOW), FollowerAppend(opened, third, NOW)
            refused.written, behind.written = partial(told.append, "refused"), partial(told.append, "behind")
            errors = await appended(thread, refused, behind)
            assert [type(error) for error in errors] == [DiskFull, DiskFull]
            again, garbage = FollowerAppend(opened, first, NOW), FollowerAppend(opened, b"garbage", NOW)
            again.written, garbage.written = partial(told.append, "again"), partial(told.append, "garbage")
            errors = await appended(thread, again, garbage)
            assert [type(error) for error in errors] == [CorruptDataError, CorruptDataError]
            assert (opened.log.failed, told) == (None, [])
            assert thread.counters.failed_groups == 4
            both = [FollowerAppend(opened, each, NOW) for each in (second, third)]
            assert await appended(thread, *both) == [None, None]
            assert thread.counters.records == 3

    asyncio.run(scenario())


def test_what_a_full_disk_lets_through_is_learnt() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        opened = following(disk)
        async with running(disk) as thread:
            await appended(thread, FollowerAppend(opened, frames(1)[0], NOW))
            roll = disk.calls + 2  # the first batch of two fits, the next segment does not
            disk.faults = {number: Fault(FaultKind.DISK_FULL) for number in range(roll, roll + 20)}
            append = FollowerAppend(opened, b"".join(frames(3)[1:]), NOW)
            (error,) = await appended(thread, append)
        assert isinstance(error, DiskFull)
        assert opened.log.log_end_offset == 2
        assert (append.records, opened.history.last_timestamp) == (1, NOW + 1)

    asyncio.run(scenario())


def test_a_sync_that_fails_is_told_behind_the_write_and_nothing_is_learnt() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        opened = following(disk)
        first, second = frames(2)
        told: list[int] = []
        async with running(disk) as thread:
            await appended(thread, FollowerAppend(opened, first, NOW))
            learnt = opened.history.last_timestamp
            disk.faults[disk.calls + 2] = Fault(FaultKind.SYNC_ERROR)
            append = FollowerAppend(opened, second, NOW)
            append.written = partial(told.append, 1)
            (error,) = await appended(thread, append)
        assert isinstance(error, FsyncFailed)
        assert told == [1]
        assert opened.history.last_timestamp == learnt

    asyncio.run(scenario())


def test_readers_take_short_turns_while_something_is_stored() -> None:
    """Also at a follower: the leader's acks wait for it."""

    async def scenario() -> None:
        disk, begun_at = MemoryDisk(), asyncio.get_running_loop().time()
        async with running(disk) as thread:
            await thread.call(lambda: None)
            assert thread.catch_up_queue._scheduler.length(begun_at) == TURN_BYTES
            await appended(thread, FollowerAppend(following(disk), frames(1)[0], NOW))
            assert thread.catch_up_queue._scheduler.length(begun_at) == SHORT_TURN_BYTES

    asyncio.run(scenario())


class ToldTurns(CatchUpScheduler):
    """Notes what it learns of appends."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self._told = told

    def appending(self, now_s: float) -> None:
        self._told.append("appending")
        super().appending(now_s)

    def appended(self, appends: int, now_s: float) -> bool:
        self._told += ["appended"] * appends
        return super().appended(appends, now_s)


def test_readers_turns_learn_of_each_append_and_behind_its_outcome_that_it_is_done() -> None:
    async def scenario() -> None:
        disk, told = MemoryDisk(), list[str]()
        turns = CatchUpQueue(ToldTurns(told), SystemClock(), asyncio.get_running_loop())
        thread = DiskThread(SyncScheduler(disk), Crash(), catch_up_queue=turns)
        log = begun(disk)
        for fault, error in ((None, type(None)), (Fault(FaultKind.DISK_FULL), DiskFull)):
            if fault is not None:
                disk.faults[disk.calls + 1] = fault
            append = GroupAppend(log, [batch_for(log, [b"x"])], NOW)
            thread.append([append], lambda: told.append("outcome"))
            await until(lambda: len(told) == 3)
            assert told == ["appending", "outcome", "appended"]
            assert isinstance(append.error, error)
            told.clear()
        await thread.stop()

    asyncio.run(scenario())


def test_a_reader_that_waits_has_its_turn_when_the_last_append_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        disk, told = MemoryDisk(), list[str]()
        log = begun(disk)
        async with running(disk) as thread:
            for _ in range(2):
                thread.append(
                    [GroupAppend(log, [batch_for(log, [b"x"])], NOW)], partial(told.append, "outcome")
                )
                thread.catch_up_queue.wait(partial(told.append, "turn"), goes_on=False)
                await until(lambda: told[-1:] == ["turn"])
                assert told == ["outcome", "turn"]
                told.clear()

    for limit in ("_PATIENCE_S", "_MOMENT_S"):
        monkeypatch.setattr(f"jetstream.fetch.catch_up_scheduler.{limit}", 1e9)
    monkeypatch.setattr("jetstream.node.runtime.catch_up_queue._LOOK_S", 1e9)  # no timer has it go on
    asyncio.run(scenario())


def test_a_follower_learns_from_what_was_stored() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        opened = following(disk)
        async with running(disk) as thread:
            data = b"".join(frames(3))
            assert await appended(thread, FollowerAppend(opened, data, TimestampUs(NOW + 9))) == [None]
        assert opened.history.last_timestamp == NOW + 2

    asyncio.run(scenario())


def test_a_follower_learns_message_ids_in_the_order_of_the_log() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        opened = following(disk)
        plain = encode(values_batch([b"plain"], 1, NOW + 1), Offset(1), LeaderEpoch(1)).seal(BatchFlags(0))
        async with running(disk) as thread:
            done = asyncio.Event()
            for data in (with_id(0), bytes(plain), with_id(2)):
                thread.append([FollowerAppend(opened, data, NOW)], done.set)
            await thread.call(lambda: None)  # whoever comes between finds all of it learnt
            learnt = opened.history
            assert [learnt.dedupe.lookup(b"id%d" % base) for base in range(3)] == [0, None, 2]
            assert learnt.last_timestamp == NOW + 2
            # A leader that asks nothing of the disk for a while has it learnt too.
            thread.append([FollowerAppend(opened, with_id(3), NOW)], done.set)
            await until(lambda: learnt.dedupe.lookup(b"id3") == 3)

    asyncio.run(scenario())


# --- how the thread is woken ------------------------------------------------------------------------------


def test_no_job_waits_whatever_the_thread_is_at_when_it_comes() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = begun(disk)
        async with running(disk) as thread, asyncio.timeout(60):
            for turn in range(400):
                calls = [thread.call(partial(int, number)) for number in range(turn % 4)]
                for _ in range(turn % 3):
                    await asyncio.sleep(0)  # the thread has begun, is done, or is about to wait again
                append = GroupAppend(log, [batch_for(log, [b"value"])], NOW)
                assert await ended(thread, append) == [None]
                assert await asyncio.gather(*calls) == list(range(turn % 4))
        assert log.log_end_offset == 400

    asyncio.run(scenario())


def test_a_thread_that_is_stopped_leaves_no_descriptor_open_and_is_stopped_once() -> None:
    async def scenario() -> None:
        thread = DiskThread(SyncScheduler(MemoryDisk()), Crash())
        await thread.stop()
        other = os.eventfd(0, os.EFD_NONBLOCK)  # in the place of what was closed
        await asyncio.gather(thread.stop(), thread.stop())
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        os.close(other)
        with pytest.raises(StreamOffline):
            await thread.call(int)

    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        asyncio.run(scenario())
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_signal_to_the_thread_ends_no_wait() -> None:
    async def scenario() -> None:
        async with running(MemoryDisk()) as thread:
            (number,) = [each.ident for each in threading.enumerate() if each.name == "jetstream-disk"]
            assert number is not None
            for count in range(100):  # most of them while it waits
                signal.pthread_kill(number, signal.SIGUSR1)
                assert await thread.call(partial(int, count)) == count

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        asyncio.run(scenario())
    finally:
        signal.signal(signal.SIGUSR1, before)
