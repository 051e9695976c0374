"""One open stream on its node: mailbox → machines → disk → acks.

It decides nothing: `StreamIngest` sequences, refuses and acks, `Leader` commits, `Log` stores. While a group
is written and synced, the next one gathers in the mailbox; `GroupCommit` says when it is due.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from envelope.errors import DiskFull, JetstreamError, StreamOffline, Unauthorized
from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX, MAILBOX_BYTES_MAX, MAILBOX_MESSAGES_MAX
from envelope.types import LeaderEpoch, Offset, StreamName, SyncMode, TimestampUs
from jetstream.ingest.machine import (
    Action,
    Append,
    Appended,
    AppendRefused,
    AppendUnknown,
    Count,
    HighWatermarkAdvanced,
    Overflowed,
    Publish,
    Received,
    StreamIngest,
)
from jetstream.ingest.mailbox import Mailbox
from jetstream.ingest.messages import MessageBlock
from jetstream.log.log import Log
from jetstream.log.plain_batch import encode_records
from jetstream.node.clock import Clock
from jetstream.node.disk_thread import DiskThread, GroupAppend
from jetstream.node.gaps import Gap, PossibleGaps
from jetstream.node.group_commit import GroupCommit
from jetstream.node.nats_link import NatsLink
from jetstream.node.nats_routes import Route
from jetstream.node.recovery import OpenedStream
from jetstream.node.upkeep import Upkeep
from jetstream.replica.leader import sole_replica
from jetstream.replica.leader_events import AdvanceHighWatermark, Synced
from metadata.api.responses import GapKind
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamServices:
    """What a stream needs of its node."""

    clock: Clock
    disk: DiskThread
    group_commit: GroupCommit
    ingest: NatsLink
    send_acks: Callable[[bytes, Callable[[], None]], None]
    """Sends ready-made NATS commands; calls the second argument if they are lost, at once or later."""
    binds: Callable[[str, str], bool]
    """Whether the named stream is bound to the subject (catalogue look-up)."""


class StreamOwner:
    """The owner of one stream's state on its leader."""

    def __init__(
        self, config: StreamConfig, incarnation: str, opened: OpenedStream, services: StreamServices
    ) -> None:
        self.config = config
        self.incarnation = incarnation
        self.leader_epoch: LeaderEpoch = opened.leader_epoch
        self.log: Log = opened.log
        self.gaps = PossibleGaps()
        self.counts: Counter[str] = Counter()
        self.upkeep = Upkeep(opened.log, services.clock, lambda: self.high_watermark, opened.txid)
        self._services = services
        self._leader = sole_replica(
            opened.leader_epoch, opened.log.log_end_offset, opened.log.synced_end, services.clock.monotonic()
        )
        self._ingest = StreamIngest(
            StreamName(config.name),
            config,
            opened.leader_epoch,
            opened.log.log_end_offset,
            opened.history,
            services.binds,
        )
        self._mailbox = Mailbox(MAILBOX_MESSAGES_MAX, MAILBOX_BYTES_MAX)
        self._is_due = False
        self._in_flight = 0
        self._gave_up = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.route = Route(config.subject, config.group or "", self.deliver)
        """The subscription to the subject; ``route.problem`` says why its messages do not come."""
        self._watchers: set[Callable[[Offset], None]] = set()

    # --- what others see -------------------------------------------------------------------------

    @property
    def name(self) -> StreamName:
        """The stream's name."""
        return StreamName(self.config.name)

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed."""
        return self._leader.high_watermark

    def subscribe(self, callback: Callable[[Offset], None]) -> Callable[[], None]:
        """Call ``callback`` with every new high watermark; returns the way to stop that."""
        self._watchers.add(callback)
        return lambda: self._watchers.discard(callback)

    @property
    def waiting(self) -> int:
        """Messages in the mailbox."""
        return len(self._mailbox)

    @property
    def ingest(self) -> StreamIngest:
        """The stream's publish machine, for its info."""
        return self._ingest

    # --- life ------------------------------------------------------------------------------------

    async def attach(self) -> None:
        """Subscribe to the stream's subject; the server has the subscription on return, if it is connected.

        Raises:
            Unauthorized: NATS denies it; what is stored can be read all the same.
        """
        self.route = Route(self.config.subject, self.config.group or "", self.deliver)
        try:
            await self._services.ingest.subscribe(self.route)
        except Unauthorized as error:
            _log.error("stream not attached stream=%s error=%s runbook=RB-03", self.name, error)
            raise

    async def detach(self) -> None:
        """Leave the subject; messages that NATS sent before are in the mailbox on return."""
        await self._services.ingest.unsubscribe(self.route)

    def reconfigure(self, config: StreamConfig) -> None:
        """Take a changed configuration in; it holds from the next group on."""
        self.config = config
        self._ingest.reconfigure(config)

    def deliver(self, messages: MessageBlock) -> None:
        """Take in what NATS delivered; called from the ingest connection's read loop, never waits."""
        if self._gave_up:
            return
        refused = self._mailbox.offer(messages)
        self._idle.clear()
        if not self._is_due and self._wants_group():
            self._is_due = True
            self._services.group_commit.due(self)
        if refused is not None:
            now = self._services.clock.wall()
            silent = sum(1 for reply in refused.replies if not reply)
            if silent:
                self.gaps.add(Gap(GapKind.OVERLOAD, now, now, silent))
            self._perform(self._ingest.handle(Overflowed(refused), now))

    async def drained(self) -> None:
        """Return when nothing waits in the mailbox and no group is in flight."""
        await self._idle.wait()

    async def close(self) -> None:
        """Sync, checkpoint and close the log."""
        await self._services.disk.call(self.log.close)

    # --- groups (Appender) -----------------------------------------------------------------------

    def next_group(self) -> GroupAppend | None:
        """Drain the mailbox into one append; None if what waited needs none, or should gather."""
        self._is_due = False
        while self._wants_group():
            messages = self._mailbox.drain(GROUP_MESSAGES_MAX, BATCH_BYTES_MAX)
            now = self._services.clock.wall()
            append = self._perform(self._ingest.handle(Received(messages), now))
            if append is not None:
                self._in_flight += 1
                batches = encode_records(
                    append.records, append.base, append.leader_epoch, self.config.compression
                )
                return GroupAppend(self.log, batches, now)
        self._rest_if_done()
        return None

    def appended(self, append: GroupAppend) -> bool:
        """Commit and ack what was appended, or say why it was not; tell whether the next group is due."""
        self._in_flight -= 1
        if self._gave_up:
            return False
        now, error = self._services.clock.wall(), append.error
        if error is None:
            self.upkeep.appended(now, append.batches)
            self._perform(self._ingest.handle(Appended(append.end), now))
            # The disk may be a group ahead of what is told here.
            self._commit(min(self.log.synced_end, append.end), append.end, now)
        elif isinstance(error, DiskFull | StreamOffline):
            _log.warning("append refused stream=%s error=%s", self.name, error)
            self._perform(self._ingest.handle(AppendRefused(error), now))
        else:
            _log.error("stream offline stream=%s error=%r runbook=RB-01", self.name, error)
            self._perform(self._ingest.handle(AppendUnknown(error), now))
        if self._is_due:
            return False
        self._is_due = self._wants_group()
        self._rest_if_done()
        return self._is_due

    def give_up(self) -> None:
        """Take in and answer nothing any more."""
        self._gave_up = True
        self._idle.set()

    def _wants_group(self) -> bool:
        others = self._services.group_commit.in_flight - self._in_flight
        return self._ingest.wants_group(len(self._mailbox), others)

    def _rest_if_done(self) -> None:
        if not self._mailbox and not self._in_flight:
            self._idle.set()

    def _commit(self, synced_end: Offset, log_end: Offset, now: TimestampUs) -> None:
        monotonic = self._services.clock.monotonic()
        for action in self._leader.handle(Synced(synced_end, log_end), monotonic):
            assert isinstance(action, AdvanceHighWatermark), f"the only replica has no followers: {action}"
            self._perform(self._ingest.handle(HighWatermarkAdvanced(action.high_watermark), now))
            for watcher in tuple(self._watchers):
                watcher(action.high_watermark)

    def _perform(self, actions: Iterable[Action]) -> Append | None:
        """Do the actions in order, but for an append, which is the caller's to do."""
        append: Append | None = None
        for action in actions:
            match action:
                case Publish(data, count):
                    self._services.send_acks(data, partial(self.counts.update, acks_dropped=count))
                case Count(kind, number):
                    self.counts[kind] += number
                case Append():
                    assert append is None, "one block of messages makes one append"
                    append = action
                case _:
                    assert_never(action)
        return append

    async def sync_by_interval(self) -> None:
        """Sync on the stream's timer while ``sync: interval``; runs until cancelled."""
        while True:
            await asyncio.sleep(self.config.sync_interval.total_seconds())
            if self.config.sync is not SyncMode.INTERVAL or not self.log.dirty or self.log.failed is not None:
                continue
            try:
                await self._services.disk.call(self.log.sync)
            except JetstreamError as error:
                _log.error("stream offline stream=%s error=%r runbook=RB-01", self.name, error)
