"""What each `sync` mode loses when the power goes, at every call: nothing, the last interval, or any tail.

The node's own disk thread, scheduler, upkeep and commit rule run on a disk that can lose power. One stream
publishes; its timer ticks; it falls quiet; segments roll. `Knowledge` is what its publisher and whoever looks
at the node's timer know, independent of the log: what was acked, and what was acked when a sync returned.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import pytest

from envelope.errors import StorageError
from envelope.types import LeaderEpoch, SyncMode
from jetstream.log.format.batch import iter_frames, read_header
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import LogConfig
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.thread import DiskThread
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.replica.leader import sole_replica
from jetstream.replica.leader_events import LeaderLogSynced
from tests.support.log_workload import check_files
from tests.support.logs import DIRECTORY, NOW, append, batch_for, begun, opened, stored_values
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    Survival,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.passed_checks import once_for_each_state
from tests.support.struck_calls import struck_calls

MODES = list(SyncMode)


def config_of(mode: SyncMode) -> LogConfig:
    """Segments of about three small batches, so that some roll between two ticks."""
    return LogConfig(segment_bytes=4000, sync=mode)


@dataclass(slots=True)
class Knowledge:
    """Every value is sent to the offset that is its index; nothing is refused."""

    sent: list[bytes] = field(default_factory=list)
    acked: int = 0
    """How many the publisher was acked."""
    forced: int = 0
    """How many of them were acked when a sync was begun that has returned."""


class Life:
    """One stream on a node's disk thread, step by step."""

    def __init__(self, disk: MemoryDisk, mode: SyncMode, knowledge: Knowledge, thread: DiskThread) -> None:
        self.log = begun(disk, config_of(mode))
        self._knowledge = knowledge
        self._thread = thread
        self._clock = SystemClock()
        self._leader = sole_replica(
            self.log.reader.last_epoch,
            self.log.log_end_offset,
            self.log.writer.synced_end,
            self._clock.monotonic(),
        )
        self._upkeep = Upkeep(self.log, self._clock, lambda: self._leader.high_watermark)

    async def publish(self, count: int, size: int = 10) -> None:
        """Have one group stored, and acked as far as it is committed."""
        known = self._knowledge
        values = [b"%d " % (len(known.sent) + number) + b"x" * size for number in range(count)]
        known.sent += values
        batch = batch_for(self.log, values)
        append = GroupAppend(self.log, [batch], batch.max_timestamp)
        done = asyncio.Event()
        self._thread.append([append], done.set)
        await done.wait()
        if append.error is not None:
            raise append.error
        synced = LeaderLogSynced(self.log.writer.synced_end, self.log.log_end_offset)
        self._leader.handle(synced, self._clock.monotonic())
        known.acked = self._leader.high_watermark

    async def tick(self) -> None:
        """Do what the timer of `sync: interval` does; streams of the other modes have none."""
        if self.log.writer.config.sync is SyncMode.INTERVAL:
            await self._force(self.log.writer.sync)

    async def fall_quiet(self) -> None:
        """Do what the housekeeper does a second after the last append."""
        await self._force(self._upkeep.checkpoint)

    async def close(self) -> None:
        """End as a node that stops."""
        await self._force(self.log.close)

    async def _force(self, sync: Callable[[], None]) -> None:
        acked = self._knowledge.acked
        await self._thread.call(sync)
        self._knowledge.forced = acked


Script = Callable[[Life], Awaitable[None]]


async def whole_life(life: Life) -> None:
    await life.publish(3)
    await life.publish(1, 700)
    await life.tick()
    await life.publish(2)
    await life.publish(1)
    await life.publish(5)
    await life.tick()
    await life.publish(1, 1500)
    await life.publish(1)
    await life.fall_quiet()
    await life.publish(2)
    await life.tick()
    await life.publish(1, 300)
    await life.publish(4)
    await life.publish(1)
    await life.close()


def live(disk: MemoryDisk, mode: SyncMode, script: Script) -> Knowledge:
    """Run ``script`` to its end, or until the power goes; return what is known then."""
    knowledge = Knowledge()

    async def run() -> None:
        crash = Crash()
        thread = DiskThread(SyncScheduler(disk), crash)
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(crash.watch())
                try:
                    await script(Life(disk, mode, knowledge, thread))
                except StorageError:
                    await watch  # the thread answers what it had taken when the power went, then says why
                watch.cancel()
        except* PowerLostError:
            pass
        finally:
            await thread.stop()

    asyncio.run(run())
    return knowledge


def calls_of(mode: SyncMode) -> list[str]:
    """Return the calls that a life without faults makes."""
    disk = MemoryDisk()
    live(disk, mode, whole_life)
    return disk.trace


def kept_after(disk: MemoryDisk, mode: SyncMode, survive: Survival, known: Knowledge) -> int:
    """Lose the power, start again, and return how many records are there."""
    return kept_in(disk.power_loss(survive), mode, known.sent)


@once_for_each_state
def kept_in(found: MemoryDisk, mode: SyncMode, sent: Sequence[bytes]) -> int:
    """Start, and return how many records are there: the first ones, unchanged.

    Holds for every mode: what is left is a log that lost nothing but a tail, takes new records where the lost
    ones were, under a new epoch, and is durable as it is found.
    """
    config = config_of(mode)
    if found.exists(DIRECTORY):
        problems = inspect_stream(found, DIRECTORY).problems
        assert {problem.kind for problem in problems} <= {ProblemKind.TORN, ProblemKind.DERIVED}, problems
    log = opened(found, config)
    assert (log.failed, log.reader.corrupt_ranges) == (None, ())
    stored = stored_values(log)
    assert stored == dict(enumerate(sent[: len(stored)])), "a prefix of what was sent, in its place"
    kept = log.log_end_offset
    assert kept == len(stored)

    found = found.power_loss(nothing_survives)
    again = opened(found, config)
    assert stored_values(again) == stored, "what a start finds is durable"
    again.writer.begin_epoch(LeaderEpoch(2), NOW)
    append(again, [b"in place of a lost one"])
    again.close()
    check_files(again)
    assert {problem.kind for problem in inspect_stream(found, DIRECTORY).problems} <= {ProblemKind.DERIVED}
    last = opened(found, config, full=True)
    assert stored_values(last) == {**stored, kept: b"in place of a lost one"}
    (frame,) = iter_frames(last.reader.read(kept, 1, last.log_end_offset))
    assert read_header(frame).leader_epoch == 2
    assert last.reader.epochs.end_of(LeaderEpoch(1), last.log_end_offset) in (kept, None), (
        "whoever has read more of epoch 1 is told"
    )
    return kept


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one power loss ended."""

    acked: int
    forced: int
    kept: int


def outcomes(
    mode: SyncMode, survivals: Sequence[Survival], step: int = 1, bytes_kept: int = 300
) -> list[Outcome]:
    """Lose the power before and after each ``step``-th call and the last, in each way, and start again."""
    found: list[Outcome] = []
    calls = calls_of(mode)
    for kind in (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER):
        for number in (*struck_calls(calls, kind, step), len(calls) + 1):
            disk = MemoryDisk({number: Fault(kind, bytes_kept * (number % 4))})
            known = live(disk, mode, whole_life)
            found.extend(
                Outcome(known.acked, known.forced, kept_after(disk, mode, survive, known))
                for survive in survivals
            )
    return found


SURVIVALS = (nothing_survives, everything_survives, random_survival(1))
SAMPLES = pytest.mark.parametrize(
    "step", [7, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_sync_modes.py"))]
)
"""A seventh of the calls, and all."""


@pytest.mark.slow("tests/crash/test_power_loss.py")
def test_always_loses_nothing_that_was_acked() -> None:
    found = outcomes(SyncMode.ALWAYS, SURVIVALS)
    assert max(outcome.acked for outcome in found) == 22, "the life was lived to its end"
    for outcome in found:
        assert outcome.kept >= outcome.acked, outcome


@SAMPLES
def test_interval_loses_at_most_what_was_acked_after_the_last_sync(step: int) -> None:
    found = outcomes(SyncMode.INTERVAL, SURVIVALS, step)
    assert max(outcome.forced for outcome in found) == 22, "the life was lived to its end"
    for outcome in found:
        assert outcome.kept >= outcome.forced, outcome
    losses = [outcome for outcome in found if outcome.kept < outcome.acked]
    assert any(outcome.kept == outcome.forced > 0 for outcome in losses), "all of it can be lost"
    assert any(outcome.kept > outcome.forced for outcome in losses), "and a part of it"


@SAMPLES
def test_os_loses_any_tail_and_leaves_a_log_that_goes_on(step: int) -> None:
    found = outcomes(SyncMode.OS, SURVIVALS, step)
    assert max(outcome.forced for outcome in found) == 22, "the life was lived to its end"
    for outcome in found:
        assert outcome.kept >= outcome.forced, outcome
    losses = {outcome.acked - outcome.kept for outcome in found if outcome.kept < outcome.acked}
    assert len(losses) > 3, "how much is nobody's decision"


@pytest.mark.deep
@pytest.mark.parametrize("mode", MODES)
def test_any_sectors_surviving_lose_no_more_than_the_mode_says(mode: SyncMode) -> None:
    for seed in range(15):
        for outcome in outcomes(mode, [random_survival(seed)], bytes_kept=seed * 37):
            assert outcome.kept >= (outcome.acked if mode is SyncMode.ALWAYS else outcome.forced), outcome


@pytest.mark.parametrize(("mode", "kept"), [(SyncMode.ALWAYS, 6), (SyncMode.INTERVAL, 4), (SyncMode.OS, 0)])
def test_of_records_acked_before_and_after_a_tick_each_mode_keeps_what_it_promises(
    mode: SyncMode, kept: int
) -> None:
    async def script(life: Life) -> None:
        await life.publish(1)
        await life.publish(3)
        await life.tick()
        await life.publish(2)

    disk = MemoryDisk()
    known = live(disk, mode, script)
    assert known.acked == 6, "an ack says the same in every mode"
    assert kept_after(disk, mode, everything_survives, known) == 6, "a killed process loses nothing"
    assert kept_after(disk, mode, nothing_survives, known) == kept


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_forced_to_disk_when_a_segment_is_full(mode: SyncMode) -> None:
    active_base = 0

    async def script(life: Life) -> None:
        nonlocal active_base
        while len(life.log.reader.segments) < 3:
            await life.publish(1)
        active_base = life.log.reader.segments[-1].base

    disk = MemoryDisk()
    known = live(disk, mode, script)
    assert 0 < active_base < known.acked
    assert kept_after(disk, mode, nothing_survives, known) >= active_base


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("end", [Life.fall_quiet, Life.close])
def test_every_mode_is_forced_to_disk_when_it_falls_quiet_and_at_a_clean_stop(
    mode: SyncMode, end: Script
) -> None:
    async def script(life: Life) -> None:
        await life.publish(2)
        await life.publish(3)
        await end(life)

    disk = MemoryDisk()
    known = live(disk, mode, script)
    assert kept_after(disk, mode, nothing_survives, known) == known.acked == 5


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_is_forced_to_disk_by_the_start_after_a_killed_process(mode: SyncMode) -> None:
    async def script(life: Life) -> None:
        await life.publish(2)
        await life.publish(3)

    disk = MemoryDisk()
    known = live(disk, mode, script)
    disk.process_loss()
    opened(disk, config_of(mode))
    assert kept_after(disk, mode, nothing_survives, known) == known.acked == 5
