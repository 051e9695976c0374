import contextlib
from collections.abc import Iterator

import pytest

from envelope.errors import FsyncFailed
from envelope.types import LeaderEpoch, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.log import Log, LogConfig
from jetstream.log.sync_scheduler import SYNC_ALL_LOGS_MIN, SyncScheduler
from tests.support.logs import NOW, append, stored_values
from tests.support.memory_disk import Fault, FaultKind, MemoryDisk, nothing_survives


def logs_on(disk: Disk, count: int) -> list[Log]:
    logs = [Log.open(disk, f"stream-{number}", LogConfig(), NOW) for number in range(count)]
    for log in logs:
        log.writer.begin_epoch(LeaderEpoch(1), TimestampUs(NOW))
        append(log, [log.directory.encode()])
    return logs


def test_few_logs_are_synced_one_by_one() -> None:
    disk = MemoryDisk()
    logs = logs_on(disk, 2)
    calls = disk.calls
    assert SyncScheduler(disk).sync(logs) == dict.fromkeys(logs)
    assert [call.split()[0] for call in disk.trace[calls:]] == ["sync", "sync"]
    assert [log.writer.synced_end for log in logs] == [1, 1]


def test_many_logs_are_synced_with_one_call() -> None:
    disk = MemoryDisk()
    logs = logs_on(disk, SYNC_ALL_LOGS_MIN)
    calls = disk.calls
    assert SyncScheduler(disk).sync(logs) == dict.fromkeys(logs)
    assert [call.split()[0] for call in disk.trace[calls:]] == ["sync_all"]
    assert [log.writer.synced_end for log in logs] == [1] * len(logs)
    found = disk.power_loss(nothing_survives)
    for log in logs:
        again = Log.open(found, log.directory, LogConfig(), NOW)
        assert stored_values(again) == {0: log.directory.encode()}


def test_clean_logs_cost_nothing() -> None:
    disk = MemoryDisk()
    logs = logs_on(disk, 9)
    scheduler = SyncScheduler(disk)
    scheduler.sync(logs)
    calls = disk.calls
    scheduler.sync(logs)
    append(logs[0], [b"x"])
    scheduler.sync(logs)
    assert [call.split()[0] for call in disk.trace[calls:]] == ["write", "sync"]


def test_a_failed_sync_of_one_file_fails_that_log_alone() -> None:
    disk = MemoryDisk()
    logs = logs_on(disk, 2)
    disk.faults[disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
    results = SyncScheduler(disk).sync(logs)
    assert isinstance(results[logs[0]], FsyncFailed)
    assert results[logs[1]] is None
    assert (logs[0].writer.synced_end, logs[1].writer.synced_end) == (0, 1)


def test_a_failed_sync_of_the_disk_fails_every_log_that_it_covered() -> None:
    disk = MemoryDisk()
    logs = logs_on(disk, 5)
    logs[4].writer.sync()
    disk.faults[disk.calls + 1] = Fault(FaultKind.SYNC_ERROR)
    results = SyncScheduler(disk).sync(logs)
    assert [isinstance(results[log], FsyncFailed) for log in logs] == [True] * 4 + [False]
    assert [log.failed is None for log in logs] == [False] * 4 + [True]
    again = SyncScheduler(disk).sync(logs)
    assert isinstance(again[logs[0]], FsyncFailed), "a failed sync is not tried again"


class WithoutSyncfs(MemoryDisk):
    def sync_all(self) -> bool:
        return False


@pytest.mark.parametrize("count", [1, 20])
def test_where_the_system_cannot_sync_the_whole_disk_files_are_synced(count: int) -> None:
    disk = WithoutSyncfs()
    logs = logs_on(disk, count)
    SyncScheduler(disk).sync(logs)
    assert [log.writer.synced_end for log in logs] == [1] * count


class Timed(MemoryDisk):
    """A disk whose syncs of everything take as long as they are told to; of a file, a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.all_seconds = 0.001

    def clock(self) -> float:
        return self.now

    @contextlib.contextmanager
    def call(self, operation: str, path: str) -> Iterator[Fault | None]:
        self.now += 0.001 if operation == "sync" else 0
        with super().call(operation, path) as fault:
            yield fault

    def sync_all(self) -> bool:
        self.now += self.all_seconds
        return super().sync_all()


def syncs(disk: Timed, scheduler: SyncScheduler, logs: list[Log], rounds: int) -> list[str]:
    chosen = []
    for _ in range(rounds):
        for log in logs:
            append(log, [b"x"])
        calls = disk.calls
        scheduler.sync(logs)
        chosen.append("all" if disk.trace[calls].startswith("sync_all") else "each")
        assert not any(log.writer.dirty for log in logs)
    return chosen


def test_a_disk_that_a_neighbour_keeps_busy_is_not_synced_as_a_whole_until_it_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("jetstream.log.sync_scheduler._FORGETTING", 0.9)
    disk = Timed()
    logs = logs_on(disk, 8)
    scheduler = SyncScheduler(disk, disk.clock)
    assert set(syncs(disk, scheduler, logs, 5)) == {"all"}
    disk.all_seconds = 1.0
    assert syncs(disk, scheduler, logs, 10) == ["all"] + ["each"] * 9
    busy = syncs(disk, scheduler, logs, 100)
    assert 0 < busy.count("all") < 10
    disk.all_seconds = 0.001
    later = syncs(disk, scheduler, logs, 100)
    assert later[-1] == "all"
    assert later.count("all") > 30


def test_what_syncs_took_is_expected_of_the_next() -> None:
    disk = Timed()
    logs = logs_on(disk, 2)
    scheduler = SyncScheduler(disk, disk.clock)
    assert 0 < scheduler.expected_seconds(1) < 0.001, "a guess"
    syncs(disk, scheduler, logs, 50)
    assert [scheduler.expected_seconds(count) for count in range(3)] == pytest.approx([0, 0.001, 0.002])
