"""The groups of one shard while this node leads it: loaded from the log, then run by the `Shard` machine.

Groups and cursors are written to the shard's own log, through the path that nobody else has. So a coordinator
that was deposed can store neither, whatever it still believes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from consumer_groups.assignment.partitions import GroupName, StreamPartitions
from consumer_groups.coordinator.events import Beat, ConnectionId, Join, SetTimer, Tick
from consumer_groups.shard.events import (
    Answer,
    Asked,
    Beats,
    ConnectionClosed,
    Expired,
    GroupRequest,
    Listed,
    QuestionId,
    Reply,
    RequestFailed,
    ShardAction,
    ShardEvent,
    ShardWritten,
    StreamsChanged,
    Write,
    WriteNumber,
    WriteRefused,
)
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.records import read_group_record
from consumer_groups.shard.shard import Shard
from envelope.errors import JetstreamError, NotLeader, Overloaded, UnavailableError
from envelope.types import Offset, StreamName
from jetstream.ingest.internal_writes import InternalWriteCommitted, InternalWriteRefused, Outcome
from jetstream.log.reader import LogReader
from jetstream.log.segments.segment import PlanAgain
from jetstream.node.groups.latest_records import read_latest
from jetstream.node.replicas.internal_write_path import InternalAppendPath
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.timers import Timers
from jetstream.replica.settings import NEVER

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.05
_EARLY_MAX: Final = 10_000
"""Questions that wait while the groups are being read."""

Done = Callable[[Answer], None]
"""Called once with the answer to a question."""


@dataclass(frozen=True, slots=True)
class ShardServices:
    """The services of a node that a shard uses."""

    clock: Clock
    timers: Timers
    readers: Executor
    partitions: Callable[[StreamName], StreamPartitions | None]
    """What the catalogue says of a stream now; None if there is none of that name."""
    life: Callable[[StreamName], str | None]
    """Which life of its name a stream is; None if there is none."""


class GroupShard:
    """Of one reign; used on the loop's thread.

    Invariants:
        N10: the machine is given one event after the other, and what it wants written is so in that order.
            Held by test_a_killed_coordinator_loses_no_cursor_and_moves_nothing.
        N11: every question is answered once, at the latest when the reign ends.
            Held by test_a_coordinator_that_stood_still_stores_nothing_when_it_goes_on.
    """

    def __init__(self, leading: LeadingStream, services: ShardServices) -> None:
        """Requests before `load` has returned wait for it."""
        assert isinstance(leading.path, InternalAppendPath), "a shard is written by who leads it"
        self.stream = leading.context.name
        self._leading = leading
        self._path = leading.path
        self._services = services
        self._machine: Shard | None = None
        self._why_not: JetstreamError | None = None
        """Why nothing can be asked any more."""
        self._early: list[tuple[Callable[[], None], Done]] = []
        """What was asked before the groups were read."""
        self._questions: dict[QuestionId, Done] = {}
        self._last_question = 0
        self._lives: dict[StreamName, str | None] = {}
        self._events: deque[ShardEvent] = deque()
        self._is_running = False
        self.has_ended = False
        self._path.settled = self._settled
        self._path.appends.ended = self._end

    @property
    def machine(self) -> Shard | None:
        """Its groups; None while they are being read, and once the reign is over."""
        return self._machine

    # --- loading -----------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read all that was committed before this reign, and begin; or say why that cannot be."""
        loop, begun = asyncio.get_running_loop(), self._services.clock.monotonic()
        moved = asyncio.Event()
        unsubscribe = self._leading.context.watch(lambda _: moved.set())
        try:
            table = await self._table(moved)
        except JetstreamError as error:
            _log.error("groups not read stream=%s error=%r runbook=RB-01", self.stream, error)
            self._refuse_early(UnavailableError(f"the groups cannot be read: {error.description}"))
            return
        finally:
            unsubscribe()
        if table is None:
            return
        now = self._services.clock.monotonic()
        machine = await loop.run_in_executor(self._services.readers, lambda: Shard(table, now))
        if self.has_ended:
            return
        self._machine = machine
        self._update_streams(machine.subscribed)
        early, self._early = self._early, []
        for ask, done in early:
            try:
                ask()
            except JetstreamError as error:
                done(RequestFailed(error))
        seconds = (self._services.clock.monotonic() - begun) / 1e9
        text = "groups read stream=%s groups=%d cursors=%d seconds=%.3f"
        _log.info(text, self.stream, machine.groups, machine.cursors, seconds)

    async def _table(self, moved: asyncio.Event) -> GroupTable | None:
        """Return all that is committed, once nothing else can be; None if the reign is over before."""
        loop, log = asyncio.get_running_loop(), self._leading.context.log.reader
        table = GroupTable()
        while not self.has_ended:
            moved.clear()
            end = self._leading.high_watermark
            before = table.end
            if before < end:
                with suppress(PlanAgain):
                    await loop.run_in_executor(self._services.readers, _replay, table, log, end)
            if before < table.end:
                continue
            if self._leading.driver.has_committed_own_epoch and table.end >= log.log_end_offset:
                return table
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await moved.wait()
        return None

    # --- questions ---------------------------------------------------------------------------------

    def ask(self, group: GroupName, request: GroupRequest, done: Done) -> None:
        """Pass a request to a group's coordinator, once the groups are read.

        Raises:
            NotLeader: the reign is over, or this node was cut off.
            UnavailableError: the groups cannot be read.
            Overloaded: too many wait for that.
        """
        self._ask(lambda question: Asked(question, group, request), done)

    def join(self, group: GroupName, join: Join, done: Done) -> None:
        """As `ask`; the machine hears first what the join's streams are now."""

        def event(question: QuestionId) -> ShardEvent:
            self._update_streams(join.streams)
            return Asked(question, group, join)

        self._ask(event, done)

    def beat(
        self,
        connection: ConnectionId,
        beats: tuple[tuple[GroupName, Beat], ...],
        wait_ns: int,
        done: Done,
    ) -> None:
        """Say which members are alive, and wait for what is new to them; raises as `ask`."""
        self._ask(lambda question: Beats(question, connection, beats, wait_ns), done)

    def names(self, prefix: str, done: Done) -> None:
        """List the groups whose names begin with ``prefix``; raises as `ask`."""
        self._ask(lambda question: Listed(question, prefix), done)

    def closed(self, connection: ConnectionId) -> None:
        """Forget what waits for a connection that is gone."""
        if self._machine is not None:
            self._give(ConnectionClosed(connection))

    def streams_changed(self, names: frozenset[StreamName] | None) -> None:
        """Take in that these streams may have changed; None: any."""
        if self._machine is not None:
            subscribed = self._machine.subscribed
            self._update_streams(subscribed if names is None else subscribed & names)

    def require_writable(self) -> None:
        """Refuse early what would have to be written and cannot be.

        Raises:
            NotEnoughReplicas: too few replicas are in sync.
        """
        if self._path.suspended is not None:
            raise self._path.suspended

    def _ask(self, event: Callable[[QuestionId], ShardEvent], done: Done) -> None:
        if self._why_not is not None:
            raise self._why_not
        if self._machine is None:
            if len(self._early) >= _EARLY_MAX:
                raise Overloaded(f"{_EARLY_MAX} requests wait for the groups to be read")
            self._early.append((partial(self._ask, event, done), done))
            return
        if not self._leading.driver.holds_leadership:
            raise NotLeader("this node was cut off: another one may coordinate the group by now")
        self._last_question += 1
        question = QuestionId(self._last_question)
        self._questions[question] = done
        self._give(event(question))

    def _update_streams(self, names: Iterable[StreamName]) -> None:
        """Notify the machine of the present streams."""
        changed: list[StreamPartitions] = []
        deleted: list[StreamName] = []
        for name in sorted(names):
            life, known = self._services.life(name), self._lives.get(name)
            found = self._services.partitions(name)
            if found is None or known not in (None, life):
                deleted.append(name)
            if found is not None:
                changed.append(found)
            self._lives[name] = life
        self._give(StreamsChanged(tuple(changed), tuple(deleted)))

    # --- the machine -------------------------------------------------------------------------------

    def _give(self, event: ShardEvent) -> None:
        """Let the machine decide, unless it is at it: what it wants is done first (N10)."""
        self._events.append(event)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._events and self._machine is not None:
                now = self._services.clock.monotonic()
                for action in self._machine.handle(self._events.popleft(), now):
                    self._do(action)
        finally:
            self._is_running = False

    def _do(self, action: ShardAction) -> None:
        match action:
            case Write(number, records):
                self._path.write(number, records)
            case Reply(question, answer):
                self._questions.pop(question)(answer)
            case SetTimer(at):
                self._services.timers.at(self._tick, at)
            case Expired(group, member_id, cause):
                _log.info("member put out group=%s member=%s cause=%s", group, member_id, cause.value)
            case _:
                assert_never(action)

    def _tick(self) -> None:
        self._give(Tick())

    def _settled(self, outcome: Outcome) -> None:
        match outcome:
            case InternalWriteCommitted(number, at):
                self._give(ShardWritten(WriteNumber(number), at))
            case InternalWriteRefused(number, error):
                self._give(WriteRefused(WriteNumber(number), error))
            case _:
                assert_never(outcome)

    def _end(self) -> None:
        """Answer nothing from memory any more: another node may lead."""
        self.has_ended = True
        self._machine = None
        self._services.timers.at(self._tick, NEVER)
        self._refuse_early(NotLeader("this node does not lead the group's shard any more"))
        unknown = UnavailableError("the coordinator has ended: nobody knows whether this was stored")
        questions, self._questions = self._questions, {}
        for done in questions.values():
            done(RequestFailed(unknown))

    def _refuse_early(self, error: JetstreamError) -> None:
        """Refuse what is asked from now on, and what waits for the groups to be read."""
        self._why_not = error
        early, self._early = self._early, []
        for _, done in early:
            done(RequestFailed(error))


def _replay(table: GroupTable, log: LogReader, end: Offset) -> None:
    """Take in the next records below ``end``; on a reader thread; raises as `read_latest`."""
    records, reached = read_latest(log, table.end, end)
    found = (read_group_record(*record) for record in records)
    table.replay([record for record in found if record is not None], reached)
