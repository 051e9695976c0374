"""What the node's slow clock makes of logs that have failed, and of those that are closed."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from envelope.errors import FsyncFailed, JetstreamError
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.stream_files import StreamFiles
from jetstream.node.disk.thread import DiskThread
from jetstream.node.disk.unsynced_marker import WITNESS_FILE, BootMarker
from jetstream.node.maintenance.housekeeper import Housekeeper
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.replicas.replica_controller import ReplicaController
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.runtime.removal_clock import RemovalClock
from tests.support.lone_streams import LONE_ROW, lone_services
from tests.support.memory_disk import MemoryDisk
from tests.support.sockets import until


@pytest.mark.parametrize(("failure", "is_believed"), [(None, True), (FsyncFailed("lost"), False)])
def test_a_closed_log_is_no_failed_one(
    failure: JetstreamError | None,
    is_believed: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A node that stops, or removes a stream, closes logs while the clock still ticks; nobody is alarmed."""
    # As if it had been closed between that and the work.
    monkeypatch.setattr(Upkeep, "checkpoint_due", lambda *_: True)
    monkeypatch.setattr(Upkeep, "note_due", lambda _: True)

    async def test() -> None:
        crash, disk, clock = Crash(), MemoryDisk(), SystemClock()
        thread, witness = DiskThread(SyncScheduler(disk), crash), BootMarker(disk, "boot")
        witness.registered()
        turns = 0
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            group_commit = GroupCommit(thread, lambda: None, crash)
            services = replace(
                lone_services(clock, thread, group_commit, crash, lambda *_: None), tasks=tasks
            )
            replica = StreamReplica(LONE_ROW, services, StreamFiles(disk, clock, "tail"), lambda _: None)
            mover = ReplicaController(replica, services)
            mover.changed(LONE_ROW)
            await mover.settled()
            if failure is not None:
                replica.log.writer.fail(failure)
            await thread.call(replica.log.close)

            class Streams:
                def __iter__(self) -> Iterator[StreamReplica]:
                    nonlocal turns
                    turns += 1
                    yield replica

            housekeeper = Housekeeper(thread, RemovalClock(clock), Streams(), witness)
            ticking = tasks.create_task(housekeeper.checkpoint_every(timedelta(0)))
            await until(lambda: turns > 9)
            ticking.cancel()
        witness.stopped()
        await thread.stop()
        assert disk.exists(WITNESS_FILE) is is_believed

    asyncio.run(test())
    assert "upkeep" not in caplog.text
