"""What the event loop writes and syncs while the disk thread has nothing to do, and what it leaves to it."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest

from envelope.errors import CorruptDataError, DiskFull, FsyncFailed, StorageError, StreamOffline
from envelope.types import LeaderEpoch, Offset, SyncMode, TimestampUs
from jetstream.log.format.batch import encode
from jetstream.log.inline_commits import (
    ALONE_BYTES_MAX,
    FOLLOWED_BYTES_MAX,
    SYNC_SECONDS_MAX,
    InlineCommitPolicy,
)
from jetstream.log.log import Log, LogConfig
from jetstream.log.sync_scheduler import SYNC_ALL_LOGS_MIN, SyncScheduler
from jetstream.node.disk.appends import AnyAppend, FollowerAppend, GroupAppend
from jetstream.node.disk.history_file import NOTE_FILE, NOTHING_NOTED, encode_note
from jetstream.node.disk.open_log import begin_reign, open_log
from jetstream.node.disk.thread import DiskThread
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
from tests.support.logs import DIRECTORY, NOW, batch_for, begun, file_content, values_batch
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk
from tests.support.opened_logs import WINDOW_US, follow, frame, opened, record
from tests.support.sockets import until

OS = LogConfig(sync=SyncMode.OS)


class NotedDisk(MemoryDisk):
    """Notes who called what, once it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[str] = []

    @contextlib.contextmanager
    def call(self, operation: str, path: str) -> Iterator[Fault | None]:
        """See `MemoryDisk.call`."""
        on_loop = threading.current_thread() is threading.main_thread()
        self.noted.append(f"{operation} on {'loop' if on_loop else 'thread'}")
        with super().call(operation, path) as fault:
            yield fault


async def noted(disk: NotedDisk, thread: DiskThread, *appends: AnyAppend) -> list[str]:
    """Append together, without an error, and return who called the disk for it."""
    disk.noted.clear()
    assert await appended(thread, *appends) == [None] * len(appends)
    return disk.noted.copy()


def begun_beside(disk: MemoryDisk) -> Log:
    """Begin another log."""
    log = Log.open(disk, "other", OS, NOW)
    log.writer.begin_epoch(LeaderEpoch(1), NOW)
    return log


def one_of(log: Log, value: bytes = b"x") -> GroupAppend:
    return GroupAppend(log, [batch_for(log, [value])], NOW)


def test_a_small_group_that_followers_await_is_written_on_the_loop_and_synced_on_the_thread() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log = begun(disk)
        async with running(disk) as thread:
            first, told = one_of(log), list[str]()
            first.written = lambda: told.append("first")
            assert await noted(disk, thread, first) == ["write on thread", "sync on thread"]
            told.clear()
            append = one_of(log)
            append.written = lambda: told.append("written")
            append.stored = lambda: told.append("stored")
            assert await noted(disk, thread, append) == ["write on loop", "sync on thread"]
            assert sorted(told) == ["stored", "written"]
            assert (log.writer.durable_end, thread.counters.commits, thread.counters.records) == (2, 2, 2)
            large = one_of(log, bytes(FOLLOWED_BYTES_MAX))
            large.written = lambda: told.append("large")
            assert await noted(disk, thread, large) == ["write on thread", "sync on thread"]

    asyncio.run(scenario())


def test_a_group_that_nobody_follows_is_committed_on_the_loop() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log = begun(disk)
        async with running(disk) as thread:
            assert await noted(disk, thread, one_of(log)) == ["write on thread", "sync on thread"], "begins"
            append, told = one_of(log, bytes(FOLLOWED_BYTES_MAX)), list[str]()
            append.stored = lambda: told.append("stored")
            assert await noted(disk, thread, append) == ["write on loop", "sync on loop"]
            assert told == ["stored"]
            assert (log.writer.durable_end, thread.counters.commits, thread.counters.records) == (2, 2, 2)
            large = one_of(log, bytes(ALONE_BYTES_MAX))
            assert await noted(disk, thread, large) == ["write on thread", "sync on thread"]

    asyncio.run(scenario())


def test_what_a_follower_is_to_sync_is_the_threads_and_whatever_comes_with_it() -> None:
    """It has the next batches to read while it waits for the disk."""

    async def scenario() -> None:
        disk = NotedDisk()
        copies, log = [open_log(disk, name, CONFIG, NOW, "tail") for name in ("a", "b")], begun_beside(disk)
        first, second = frames(2)
        async with running(disk) as thread:
            await appended(thread, one_of(log), *(FollowerAppend(copy, first, NOW) for copy in copies))
            append = FollowerAppend(copies[0], second, NOW)
            assert await noted(disk, thread, append) == ["write on thread", "sync on thread"]
            append = FollowerAppend(copies[1], second, NOW)
            called = await noted(disk, thread, one_of(log), append)
            assert called == ["write on thread", "write on thread", "sync on thread"]

    asyncio.run(scenario())


def test_what_one_call_syncs_for_the_whole_disk_is_the_threads() -> None:
    """It waits for whatever anybody has written there."""

    async def scenario() -> None:
        disk = NotedDisk()
        logs = [Log.open(disk, f"stream-{number}", LogConfig(), NOW) for number in range(SYNC_ALL_LOGS_MIN)]
        for log in logs:
            log.writer.begin_epoch(LeaderEpoch(1), NOW)
        async with running(disk) as thread:
            await appended(thread, *map(one_of, logs))
            called = await noted(disk, thread, *map(one_of, logs))
            assert called == ["write on thread"] * len(logs) + ["sync_all on thread"]
            called = await noted(disk, thread, *map(one_of, logs[1:]))
            assert called == ["write on loop"] * (len(logs) - 1) + ["sync on loop"] * (len(logs) - 1)

    asyncio.run(scenario())


def test_a_disk_that_is_expected_to_sync_slowly_is_the_threads() -> None:
    async def scenario() -> None:
        disk, now = NotedDisk(), 0.0

        def clock() -> float:
            nonlocal now
            now += 5 * SYNC_SECONDS_MAX
            return now

        log = begun(disk)
        thread = DiskThread(SyncScheduler(disk, clock), Crash())
        await appended(thread, one_of(log))
        for _ in range(3):
            assert await noted(disk, thread, one_of(log)) == ["write on thread", "sync on thread"]
        followed = one_of(log)
        followed.written = lambda: None
        assert await noted(disk, thread, followed) == ["write on loop", "sync on thread"], "as ever"
        await thread.stop()

    asyncio.run(scenario())


def test_nothing_is_committed_on_the_loop_while_readers_catch_up() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log = begun(disk)
        async with running(disk) as thread:
            await appended(thread, one_of(log))
            thread.catch_up_queue.wait(print, goes_on=False)
            assert await noted(disk, thread, one_of(log)) == ["write on thread", "sync on thread"]
            thread.catch_up_queue.leave(print)
            assert await noted(disk, thread, one_of(log)) == ["write on loop", "sync on loop"]
            thread.catch_up_queue._scheduler.taken(0.0, asyncio.get_running_loop().time())
            assert await noted(disk, thread, one_of(log)) == ["write on thread", "sync on thread"]

    asyncio.run(scenario())


def test_a_sync_that_fails_on_the_loop_fails_the_log() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log = begun(disk)
        async with running(disk) as thread:
            await appended(thread, one_of(log))
            disk.faults[disk.calls + 2] = Fault(FaultKind.SYNC_ERROR)
            append, told = one_of(log), list[str]()
            append.stored = lambda: told.append("stored")
            disk.noted.clear()
            assert [type(error) for error in await appended(thread, append)] == [FsyncFailed]
            assert (disk.noted, told) == (["write on loop", "sync on loop"], [])
            assert [type(error) for error in await appended(thread, one_of(log))] == [StreamOffline]

    asyncio.run(scenario())


def test_what_needs_no_sync_does_not_wake_the_thread() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log, opened = begun(disk, OS), open_log(disk, "copy", CONFIG, NOW, "tail")
        opened.log.writer.config = OS
        data = frames(2)
        thread = DiskThread(SyncScheduler(disk), Crash())
        first = one_of(log), FollowerAppend(opened, data[0], NOW)
        assert await appended(thread, *first) == [None, None]
        disk.noted.clear()
        told: list[str] = []
        group, copy = one_of(log), FollowerAppend(opened, data[1], NOW)
        group.stored = lambda: told.append(threading.current_thread().name)
        assert await ended(thread, group, copy) == [None, None]
        assert disk.noted == ["write on loop"] * 2
        assert told == [threading.main_thread().name]
        assert (log.log_end_offset, opened.log.log_end_offset) == (2, 2)
        assert opened.history.last_timestamp == NOW + 1
        assert (thread.counters.commits, thread.counters.groups, thread._under_way) == (2, 4, 0)
        await thread.stop()

    asyncio.run(scenario())


def test_nothing_is_written_on_the_loop_while_the_thread_has_something_to_do() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log, other = begun(disk, OS), begun_beside(disk)
        async with running(disk) as thread:
            await appended(thread, one_of(log), one_of(other))
            busy, gate = threading.Event(), threading.Event()

            def stand() -> bool:
                busy.set()
                return gate.wait()

            standing = thread.call(stand)
            await asyncio.to_thread(busy.wait)
            disk.noted.clear()
            done = asyncio.Event()
            thread.append([one_of(log)], done.set)
            for _ in range(3):
                await asyncio.sleep(0)
            assert disk.noted == []
            gate.set()
            await standing
            await done.wait()
            assert disk.noted == ["write on thread"]
            # Nor together with something else that is the thread's.
            disk.noted.clear()
            done.clear()
            called = thread.call(lambda: None)
            thread.append([one_of(other)], done.set)
            await called
            await done.wait()
            assert disk.noted == ["write on thread"]

    asyncio.run(scenario())


def test_two_groups_of_one_log_are_not_written_on_the_loop_together() -> None:
    """Whether the second begins a segment shows when the first is written."""

    async def scenario() -> None:
        disk = NotedDisk()
        log = begun(disk, OS)
        async with running(disk) as thread:
            await appended(thread, one_of(log))
            first = one_of(log)
            records = values_batch([b"y"], first.end, NOW)
            second = GroupAppend(log, [encode(records, first.end, log.reader.last_epoch)], NOW)
            assert await noted(disk, thread, first, second) == ["write on thread"] * 2

    asyncio.run(scenario())


class ToldCommits(InlineCommitPolicy):
    """Notes what it learns of commits."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[bool, bool]] = []

    def took(self, seconds: float, now: float, *, failed: bool) -> None:
        self.told.append((0 < seconds < now, failed))
        super().took(seconds, now, failed=failed)


def test_a_disk_that_refuses_the_loop_has_the_thread_write_for_a_while() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        log, short = begun(disk, OS), ToldCommits()
        thread = DiskThread(SyncScheduler(disk), Crash(), inline_commits=short)
        await appended(thread, one_of(log))
        assert await noted(disk, thread, one_of(log)) == ["write on loop"]
        disk.faults[disk.calls + 1] = Fault(FaultKind.DISK_FULL)
        disk.noted.clear()
        assert [type(error) for error in await appended(thread, one_of(log))] == [DiskFull]
        assert disk.noted == ["write on loop", "truncate on loop", "sync on loop"], "undone, durably"
        assert await noted(disk, thread, one_of(log)) == ["write on thread"]
        assert short.told == [(True, False), (True, True)]
        await thread.stop()

    asyncio.run(scenario())


def test_what_comes_behind_something_unlearnt_is_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetstream.node.disk.thread._PAUSE_MS", 60_000)

    async def scenario() -> None:
        disk = NotedDisk()
        opened, log = following(disk), begun_beside(disk)
        opened.log.writer.config = OS
        async with running(disk) as thread:
            await appended(thread, one_of(log), FollowerAppend(opened, with_id(0), NOW))
            copy = FollowerAppend(opened, with_id(1), NOW)
            await ended(thread, copy, one_of(log, bytes(FOLLOWED_BYTES_MAX)))
            assert thread._commit.unreplayed == [copy]
            disk.noted.clear()
            await ended(thread, one_of(log))
            assert disk.noted == ["write on thread"]

    asyncio.run(scenario())


def test_an_answer_with_a_note_is_the_threads() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        opened = following(disk)
        async with running(disk) as thread:
            opened.log.writer.config = OS
            await appended(thread, FollowerAppend(opened, frames(1)[0], NOW))
            append = FollowerAppend(opened, frames(2)[1], NOW, note=encode_note(NOTHING_NOTED))
            assert await noted(disk, thread, append) == ["write on thread"]

    asyncio.run(scenario())


def test_a_damaged_answer_is_refused_and_nothing_is_written() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        opened = following(disk)
        async with running(disk) as thread:
            opened.log.writer.config = OS
            await appended(thread, FollowerAppend(opened, frames(1)[0], NOW))
            damaged = bytearray(frames(2)[1])
            damaged[-1] ^= 1
            disk.noted.clear()
            (error,) = await appended(thread, FollowerAppend(opened, bytes(damaged), NOW))
            assert isinstance(error, CorruptDataError)
            assert (disk.noted, opened.log.log_end_offset, opened.log.failed) == ([], 1, None)

    asyncio.run(scenario())


def test_an_error_of_ours_on_the_loop_is_the_threads() -> None:
    """Which stops the node, and refuses what comes behind."""

    async def scenario() -> None:
        disk, crash = MemoryDisk(), Crash()
        log = begun(disk, OS)
        thread = DiskThread(SyncScheduler(disk), crash)
        other = begun_beside(disk)
        await appended(thread, one_of(log), one_of(other))
        append, behind = one_of(log), one_of(other)
        append.written = broken
        for each in (append, behind):
            (error,) = await ended(thread, each)
            assert isinstance(error, StorageError)
        with pytest.raises(OursError):
            await crash.watch()
        await thread.stop()

    asyncio.run(scenario())


def test_message_ids_that_the_loop_wrote_are_learnt_by_the_thread() -> None:
    async def scenario() -> None:
        disk = NotedDisk()
        opened = following(disk)
        opened.log.writer.config = OS
        learnt = opened.history
        async with running(disk) as thread:
            await appended(thread, FollowerAppend(opened, with_id(0), NOW))
            disk.noted.clear()
            await ended(thread, FollowerAppend(opened, with_id(1), NOW))
            assert disk.noted == ["write on loop"]
            await until(lambda: learnt.dedupe.lookup(b"id1") == 1)
            await until(lambda: not thread._under_way)
            assert await noted(disk, thread, FollowerAppend(opened, with_id(2), NOW)) == ["write on loop"]
            assert learnt.dedupe.lookup(b"id2") == 2, "whoever comes between finds it learnt"

    asyncio.run(scenario())


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_leader_notes_what_is_not_committed_before_it_stores_what_is_younger(on_loop: bool) -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = opened(disk)
        follow(log, frame(0, [record(0), record(1)]))
        log.fates.observe(Offset(1), TimestampUs(NOW))
        begin_reign(log, LeaderEpoch(2), NOW)
        log.history.dedupe.fates.hold_from(Offset(1))
        young = GroupAppend(log.log, [batch_for(log.log, [b"x"], NOW + 2 * WINDOW_US)], NOW, note=log.note)
        if on_loop:  # where the thread has nothing to do, it commits what is one write and nothing else
            async with running(disk) as thread:
                assert await ended(thread, young) == [None]
        else:
            young.write()
        assert b'"held":1' in file_content(disk, f"{DIRECTORY}/{NOTE_FILE}")

    asyncio.run(scenario())
