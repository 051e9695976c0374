"""A call to the disk fails while two appends of a stream are in flight: nobody hears what is not so.

The node's own stream owner, group commit, disk thread and log run on a disk that fails once, at every call,
in every way. `Publisher` is all that publishers know, independent of the log: what was published in which
order, and what was heard of it.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Final

import pytest

from envelope.errors import DiskFull, JetstreamError, OutOfResources, StreamOffline
from envelope.types import LeaderEpoch, TimestampUs
from jetstream.ingest.messages import MessageBlock
from jetstream.log.inline_commits import InlineCommitPolicy
from jetstream.log.inspection import ProblemKind, inspect_stream
from jetstream.log.log import LogConfig
from jetstream.log.segments.segment import SEGMENT_SUFFIX
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.appends import AnyAppend
from jetstream.node.disk.group_commit import GroupCommit
from jetstream.node.disk.thread import DiskThread
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from metadata.stream_config import StreamConfig
from tests.support.disk_threads import NoInlineCommits
from tests.support.ingest_machine import outcomes
from tests.support.logs import DIRECTORY, NOW, stored_values
from tests.support.lone_streams import lead, lone_services, open_led
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.messages import answers_in, block_of, message
from tests.support.passed_checks import once_for_each_state
from tests.support.sockets import until
from tests.support.struck_calls import struck_calls

CONFIG: Final = StreamConfig(name="orders", subject="orders.>")
EPOCH: Final = LeaderEpoch(3)
SEGMENT_BYTES: Final = 24_000
"""Now the first of two groups begins a segment, now the second (less than a stream may be configured to)."""

ROUNDS: Final = ((20, 64), (1, 64), (85, 64), (3, 70))
"""How many messages the two groups of each round have."""

REFUSED_FULL: Final = f"error {DiskFull.ack_code}"
REFUSED_EXHAUSTED: Final = f"error {OutOfResources.ack_code}"
REFUSED_FOR_NOW: Final = frozenset({REFUSED_FULL, REFUSED_EXHAUSTED})
REFUSED_OFFLINE: Final = f"error {StreamOffline.ack_code}"


class Way(Enum):
    """How the disk thread comes by two appends."""

    TOGETHER = "taken together"
    """It was busy with other work, finds both, and shares one sync between them."""
    IN_TURN = "taken in turn"
    """It stands at the first one's first call while the second is handed over."""
    AT_ONCE = "the first one written on the way"
    """The loop writes it, if that is only a write, and the disk thread stands at its next call."""
    ALONE = "one after the other"
    """Nobody follows: the loop commits each, but for what is more than a write and a sync."""


ON_LOOP: Final = frozenset({Way.AT_ONCE, Way.ALONE})


class Gate:
    """Where the disk thread stands still until the loop lets it go on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened = threading.Event()
        self.reached = asyncio.Event()

    def stand(self) -> None:
        """Wait; on the disk thread."""
        self._loop.call_soon_threadsafe(self.reached.set)
        self._opened.wait()

    def open(self) -> None:
        """Let the thread go on."""
        self._opened.set()


class GatedDisk(MemoryDisk):
    """A memory disk on which the disk thread's next call waits at ``gate``, if there is one.

    Attributes:
        loop_writes: how often the loop has written to a segment.
    """

    gate: Gate | None = None
    loop_writes = 0

    @contextlib.contextmanager
    def call(self, operation: str, path: str) -> Iterator[Fault | None]:
        """See `MemoryDisk.call`."""
        if threading.current_thread() is threading.main_thread():
            self.loop_writes += operation == "write" and path.endswith(SEGMENT_SUFFIX)
        else:
            gate, self.gate = self.gate, None
            if gate is not None:
                gate.stand()
        with super().call(operation, path) as fault:
            yield fault


class StillClock(SystemClock):
    """The time of day stands still, so that equal lives store equal bytes."""

    def wall(self) -> TimestampUs:
        """See `Clock.wall`."""
        return NOW


class FollowedThread(DiskThread):
    """A disk thread whose appends somebody awaits, as followers do."""

    def append(self, appends: Sequence[AnyAppend], done: Callable[[], None]) -> None:
        """See `DiskThread.append`."""
        for append in appends:
            append.written = lambda: None
        super().append(appends, done)


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that are published together; the number of each is its value and its id."""

    numbers: range
    attempt: int = 1

    @property
    def values(self) -> list[bytes]:
        """What is to be stored, in order."""
        return [b"%d" % number for number in self.numbers]

    @property
    def replies(self) -> list[str]:
        """The reply subject of each message, no two alike; every fifth has none."""
        return [
            "" if row % 5 == 4 else f"r{self.attempt}.{number}" for row, number in enumerate(self.numbers)
        ]

    def block(self) -> MessageBlock:
        """Return the messages as NATS delivers them; a third asks for an ack at append."""
        return block_of(
            message(
                value,
                reply,
                Nats_Msg_Id=value.decode(),
                Jetstream_Ack="leader" if number % 3 == 1 else "all",
            )
            for number, value, reply in zip(self.numbers, self.values, self.replies, strict=True)
        )

    def again(self) -> "Group":
        """Return the same messages as their publishers send them once more."""
        return Group(self.numbers, self.attempt + 1)


@dataclass(slots=True)
class Publisher:
    """Everything that was published, in order, and everything that was heard."""

    published: list[Group] = field(default_factory=list)
    heard: dict[str, object] = field(default_factory=dict)
    pairs: list[tuple[Group, ...]] = field(default_factory=list)
    """What was in flight together."""

    def new_group(self, count: int) -> Group:
        """Return a group of messages that were not published before."""
        first = max((group.numbers.stop for group in self.published), default=0)
        return Group(range(first, first + count))

    def hear(self, commands: bytes, lost: Callable[[], None]) -> None:
        """Take in answers, which are never lost; nobody gets two."""
        del lost
        for reply, outcome in outcomes(answers_in(commands)):
            assert reply not in self.heard, f"{reply} heard {self.heard[reply]} before {outcome}"
            self.heard[reply] = outcome

    def outcome(self, group: Group) -> object:
        """Return the offset of the first message, why it was refused, or None if nothing was heard.

        A group is one append: its messages have one outcome, at offsets in their order.
        """
        found = set[object]()
        for row, reply in enumerate(group.replies):
            if reply:
                heard = self.heard.get(reply)
                found.add(heard - row if isinstance(heard, int) else heard)
        assert len(found) == 1, f"{group}: {found}"
        return found.pop()

    def stored_or_not_known(self) -> list[Group]:
        """Return the groups that were not refused, in order."""
        return [group for group in self.published if not isinstance(self.outcome(group), str)]


class Life:
    """One stream of a node, from its start until it is closed or its disk gives up."""

    def __init__(
        self, disk: GatedDisk, way: Way, publisher: Publisher, thread: DiskThread, crash: Crash
    ) -> None:
        clock = StillClock()
        self._disk, self._way, self._publisher = disk, way, publisher
        self._thread, self._crash = thread, crash
        self._group_commit = GroupCommit(thread, lambda: None, crash)
        opened = open_led(disk, DIRECTORY, CONFIG, EPOCH, clock.wall())
        opened.log.writer.config = LogConfig(segment_bytes=SEGMENT_BYTES)
        services = lone_services(clock, thread, self._group_commit, crash, publisher.hear)
        self.log = opened.log
        self.owner = lead(opened, CONFIG, EPOCH, services)

    @property
    def is_over(self) -> bool:
        """Whether nothing more can be stored."""
        return self._crash.reported or self.log.failed is not None

    async def whole(self) -> None:
        """Publish all rounds; what a full disk refuses is published again."""
        for number, counts in enumerate(ROUNDS):
            groups: list[Group] = []
            for count in counts:
                groups.append(self._publisher.new_group(count))
                self._publisher.published.append(groups[-1])
            await self._in_flight_together(groups, is_checkpointed=number == 1)
            refused = [group for group in groups if self._publisher.outcome(group) in REFUSED_FOR_NOW]
            if refused:
                again = [group.again() for group in refused]
                self._publisher.published += again
                await self._in_flight_together(again)
            if self.is_over:
                break
        if self.log.failed is not None:
            await self._publish_to_a_failed_log()

    async def close(self) -> None:
        """End as a node that stops, unless something has stopped it."""
        if not self.is_over:
            with contextlib.suppress(JetstreamError):  # everything acked is durable without a clean close
                await self._thread.call(self.log.close)

    async def _in_flight_together(self, groups: list[Group], *, is_checkpointed: bool = False) -> None:
        """Publish the groups, one append each, and return when the outcome of all is known."""
        self._publisher.pairs.append(tuple(groups))
        gate = Gate()
        beside: list[asyncio.Future[None]] = []
        if self._way is Way.TOGETHER:
            beside.append(self._thread.call(gate.stand))
            await gate.reached.wait()
        else:
            self._disk.gate = gate
        try:
            for count, group in enumerate(groups, 1):
                self.owner.deliver(group.block())
                await asyncio.sleep(0)  # the loop's next turn begins the group
                if self._way in ON_LOOP:
                    await until(lambda: gate.reached.is_set() or not self._group_commit.in_flight)
                    continue
                assert self._group_commit.in_flight == count, "handed over, and not ended"
                await asyncio.sleep(0)  # and the one after it hands it to the disk thread
                await gate.reached.wait()
            if is_checkpointed:
                beside.append(self._thread.call(self.owner.context.upkeep.checkpoint))
        finally:
            gate.open()
        await self.owner.drained()
        for work in beside:
            with contextlib.suppress(JetstreamError):  # the housekeeper would say so and go on
                await work

    async def _publish_to_a_failed_log(self) -> None:
        """What is new is refused; whoever heard nothing hears nothing again."""
        publisher = self._publisher
        new = publisher.new_group(3)
        unknown = [group.again() for group in publisher.published if publisher.outcome(group) is None]
        publisher.published.append(new)
        for group in (new, *unknown):
            self.owner.deliver(group.block())
            await self.owner.drained()
        assert publisher.outcome(new) == REFUSED_OFFLINE
        assert all(publisher.outcome(group) is None for group in unknown)


@dataclass(frozen=True, slots=True)
class Lived:
    """What is left of a life."""

    disk: GatedDisk
    first_call: int
    """Number of the first call after the stream was opened."""
    publisher: Publisher
    is_over: bool
    """Whether the log failed, or the power was lost."""


def live(way: Way, number: int = 0, fault: Fault | None = None) -> Lived:
    """Live a whole life in which ``fault`` strikes the call ``number``."""
    disk = GatedDisk({} if fault is None else {number: fault})
    publisher = Publisher()

    async def run() -> Lived:
        crash = Crash()
        kind = FollowedThread if way is Way.AT_ONCE else DiskThread
        policy = InlineCommitPolicy() if way in ON_LOOP else NoInlineCommits()
        thread = kind(SyncScheduler(disk), crash, inline_commits=policy)
        try:
            async with asyncio.timeout(20):
                life = Life(disk, way, publisher, thread, crash)
                first_call = disk.calls + 1
                await life.whole()
                is_over = life.is_over
                await life.close()
                if crash.reported:
                    with contextlib.suppress(PowerLostError):
                        await crash.watch()
        finally:
            await thread.stop()
        return Lived(disk, first_call, publisher, is_over)

    return asyncio.run(run())


def check_answers(lived: Lived) -> int:
    """Every answer is right, and silence means that nobody knows; return how many records were acked."""
    publisher = lived.publisher
    refusals = {
        outcome for group in publisher.published if isinstance(outcome := publisher.outcome(group), str)
    }
    assert refusals <= REFUSED_FOR_NOW | {REFUSED_OFFLINE}, "nothing else is certain"
    end = known = 0
    for group in publisher.stored_or_not_known():
        outcome = publisher.outcome(group)
        end += len(group.numbers)
        if outcome is None:
            assert lived.is_over, f"{group} waits for ever"
        else:
            assert outcome == known == end - len(group.numbers), "acked in order, behind nothing unknown"
            known = end
    return known


@once_for_each_state
def check_restart(found: MemoryDisk, publisher: Publisher, acked: int) -> None:
    """Open the stream and find what was acked, then perhaps what is not known, and nothing else."""
    problems = inspect_stream(found, DIRECTORY).problems
    assert {problem.kind for problem in problems} <= {ProblemKind.TORN, ProblemKind.DERIVED}, problems
    opened = open_led(found, DIRECTORY, CONFIG, LeaderEpoch(EPOCH + 1), NOW)
    assert (opened.log.failed, opened.log.reader.corrupt_ranges) == (None, ())
    stored = stored_values(opened.log)
    ends, values = [0], list[bytes]()
    for group in publisher.stored_or_not_known():
        values += group.values
        ends.append(len(values))
    assert stored == dict(enumerate(values[: len(stored)])), "in order, each once, nothing that was refused"
    assert opened.log.log_end_offset == len(stored) >= acked
    assert len(stored) in ends, "whole groups"
    remembered = {value: opened.history.dedupe.lookup(value) for value in values}
    assert remembered == {**dict.fromkeys(values), **{value: offset for offset, value in stored.items()}}
    opened.log.close()
    assert inspect_stream(found, DIRECTORY).healthy


@cache
def undisturbed(way: Way) -> Lived:
    """Return a life without a fault."""
    return live(way)


def strikes(way: Way, kind: FaultKind, step: int) -> Iterator[tuple[int, Fault]]:
    """Yield a fault of that kind for each ``step``-th call of a life that it strikes, others for each way."""
    life = undisturbed(way)
    opening = life.first_call - 1
    if kind is FaultKind.SYNC_ERROR:
        step = 1  # they are few
    for number in struck_calls(life.disk.trace[opening:], kind, step, list(Way).index(way)):
        yield opening + number, Fault(kind, bytes_kept=(0, 1, 3000, 1 << 20)[number % 4])


def ends_of_pairs(publisher: Publisher) -> set[str]:
    """Return what became of the groups that were in flight together, in words."""
    words = {int: "stored", str: "refused", type(None): "unknown"}
    return {" ".join(words[type(publisher.outcome(group))] for group in pair) for pair in publisher.pairs}


@pytest.mark.parametrize("way", Way)
def test_either_group_of_a_pair_begins_a_segment(way: Way) -> None:
    life = undisturbed(way)
    bases = {
        int(call.rpartition("/")[2].partition(".")[0])
        for call in life.disk.trace
        if call.startswith("create") and call.endswith(".arrows")
    }
    firsts = {life.publisher.outcome(pair[0]) for pair in life.publisher.pairs[1:]}
    seconds = {life.publisher.outcome(pair[1]) for pair in life.publisher.pairs}
    assert bases & firsts, bases
    assert bases & seconds, bases
    assert bool(life.disk.loop_writes) == (way in ON_LOOP)


WHOLE_ENDS: Final = {"stored stored", "unknown unknown"}
ENDS: Final = {
    FaultKind.DISK_FULL: {"stored stored", "stored refused", "refused refused"},
    FaultKind.SHORT_WRITE: {"stored stored", "stored refused", "refused refused"},
    FaultKind.EXHAUSTED: {"stored stored", "stored refused", "refused refused"},
    FaultKind.IO_ERROR: {"stored stored", "stored unknown", "unknown unknown"},
    FaultKind.SYNC_ERROR: {"stored stored", "stored unknown", "unknown unknown"},
    FaultKind.POWER_LOSS: WHOLE_ENDS,
    FaultKind.POWER_LOSS_AFTER: WHOLE_ENDS,
}
"""How pairs end, at least: the faults strike between the two as well as before and after both."""


@pytest.mark.parametrize(
    "step", [5, pytest.param(1, marks=pytest.mark.slow("tests/crash/test_two_in_flight.py"))]
)
@pytest.mark.parametrize("kind", FaultKind)
@pytest.mark.parametrize("way", Way)
def test_whatever_fails_while_two_are_in_flight_every_answer_is_right(
    way: Way, kind: FaultKind, step: int
) -> None:
    ends = set[str]()
    for number, fault in strikes(way, kind, step):
        lived = live(way, number, fault)
        acked = check_answers(lived)
        if kind in (FaultKind.DISK_FULL, FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED):
            assert not lived.is_over
            assert acked == sum(map(sum, ROUNDS)), "what was refused is stored when it is published again"
        ends |= ends_of_pairs(lived.publisher)
        survivals = (nothing_survives, everything_survives, random_survival(number))
        for survive in survivals if step == 1 else (survivals[number % 3],):
            check_restart(lived.disk.power_loss(survive), lived.publisher, acked)
    assert ends >= ENDS[kind]
