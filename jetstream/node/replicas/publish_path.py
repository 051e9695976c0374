"""The publish path of a stream that this node leads: mailbox → machine → disk → acks.

It decides nothing: `StreamIngest` sequences, refuses and acks, `Log` stores. While a group is written and
synced, the next one gathers in the mailbox; `GroupCommit` says when it is due. Followers get a group when it
is written, so that they sync it while this node does.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import assert_never

from envelope.errors import DiskFull, JetstreamError, StreamOffline, StreamReadOnly
from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX, MAILBOX_BYTES_MAX, MAILBOX_MESSAGES_MAX
from envelope.types import Offset
from jetstream.ingest.machine import (
    Action,
    Appended,
    AppendRecords,
    AppendRefused,
    AppendUnknown,
    Count,
    GroupReceived,
    HighWatermarkAdvanced,
    Overflowed,
    Publish,
    StreamIngest,
)
from jetstream.ingest.mailbox import Mailbox
from jetstream.ingest.messages import MessageBlock
from jetstream.log.format.plain_batch import encode_records
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.nats.gaps import Gap
from jetstream.node.replicas.leadership import LeaderDriver
from jetstream.node.replicas.parts import NodeServices, ReplicaContext
from metadata.api.responses import GapKind

_log = logging.getLogger(__name__)


class PublishPath:
    """Of one reign; the stream's `Appender`, and its `Publishers`."""

    def __init__(self, parts: ReplicaContext, reign: LeaderDriver, services: NodeServices) -> None:
        self._parts = parts
        self._reign = reign
        self._clock = services.clock
        self._group_commit = services.group_commit
        self._send_acks = services.send_acks
        self._ingest = StreamIngest(
            parts.name,
            parts.config,
            reign.leader_epoch,
            parts.log.log_end_offset,
            parts.opened.history,
            services.binds,
        )
        self._mailbox = Mailbox(MAILBOX_MESSAGES_MAX, MAILBOX_BYTES_MAX)
        self._is_due = False
        self._in_flight = 0
        self._gave_up = False
        self._lacking: JetstreamError | None = None
        self._read_only: StreamReadOnly | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.set_read_only(is_set=parts.config.read_only)

    @property
    def waiting(self) -> int:
        """Messages in the mailbox."""
        return len(self._mailbox)

    @property
    def pending_acks(self) -> int:
        """Publishers that wait for an answer."""
        return self._ingest.pending_acks

    def deliver(self, messages: MessageBlock) -> None:
        """Take in what NATS delivered; called from the ingest connection's read loop, never waits."""
        if self._gave_up:
            return
        refused = self._mailbox.offer(messages)
        self._idle.clear()
        self._begin_if_wanted()
        if refused is not None:
            now = self._clock.wall()
            silent = sum(1 for reply in refused.replies if not reply)
            if silent:
                self._parts.gaps.add(Gap(GapKind.OVERLOAD, now, now, silent))
            self._perform(self._ingest.handle(Overflowed(refused), now))

    def reconfigure(self) -> None:
        """Take a changed configuration in; it holds from the next group on.

        But for `read_only`: `set_read_only` may have heard of a newer change than this one.
        """
        self._ingest.reconfigure(self._parts.config)

    def set_read_only(self, *, is_set: bool) -> None:
        """Refuse messages from now on, or take them again; what is being appended is stored and acked."""
        self._read_only = StreamReadOnly(f"stream {self._parts.name} is read-only") if is_set else None
        self._suspend_or_resume()

    async def drained(self) -> None:
        """Return when nothing waits in the mailbox and no group is in flight; no more is to be delivered."""
        self._ingest.hurry()
        self._begin_if_wanted()
        await self._idle.wait()

    def stop(self) -> None:
        """Take in and answer nothing any more; what is in flight is waited for by `drained`."""
        self._gave_up = True
        if not self._in_flight:
            self._idle.set()

    # --- its reign's Publishers --------------------------------------------------------------------

    def committed(self, high_watermark: Offset) -> None:
        """See `Publishers.committed`."""
        self._perform(self._ingest.handle(HighWatermarkAdvanced(high_watermark), self._clock.wall()))
        self._begin_if_wanted()

    def suspend(self, reason: JetstreamError | None) -> None:
        """See `Publishers.suspend`."""
        self._lacking = reason
        self._suspend_or_resume()

    # --- groups (Appender) -----------------------------------------------------------------------

    def next_group(self) -> GroupAppend | None:
        """Drain the mailbox into one append; None if what waited needs none, or should gather."""
        self._is_due = False
        while not self._gave_up and self._wants_group():
            messages = self._mailbox.drain(GROUP_MESSAGES_MAX, BATCH_BYTES_MAX)
            now = self._clock.wall()
            append = self._perform(self._ingest.handle(GroupReceived(messages), now))
            if append is not None:
                self._in_flight += 1
                batches = encode_records(
                    append.records, append.base, append.leader_epoch, self._parts.config.compression
                )
                group = GroupAppend(self._parts.log, batches, now)
                group.stored = partial(self._parts.opened.note.appended, batches, append.places)
                if self._reign.is_replicated:
                    group.written = partial(self._reign.written, batches)
                return group
        self._rest_if_done()
        return None

    def appended(self, append: GroupAppend) -> bool:
        """Commit and ack what was appended, or say why it was not; tell whether the next group is due."""
        self._in_flight -= 1
        if self._gave_up:
            self.stop()
            return False
        now, error, name = self._clock.wall(), append.error, self._parts.name
        if error is None:
            self._parts.upkeep.appended()
            self._perform(self._ingest.handle(Appended(append.end), now))
            self._reign.appended(append.end)
        elif isinstance(error, DiskFull | StreamOffline):
            _log.warning("append refused stream=%s error=%s", name, error)
            self._perform(self._ingest.handle(AppendRefused(error), now))
        else:
            _log.error("stream offline stream=%s error=%r runbook=RB-01", name, error)
            self._perform(self._ingest.handle(AppendUnknown(error), now))
        if self._is_due:
            return False
        self._is_due = self._wants_group()
        self._rest_if_done()
        return self._is_due

    def give_up(self) -> None:
        """Take in and answer nothing any more: an error of ours has left the stream in an unknown state."""
        self._gave_up = True
        self._idle.set()

    def _suspend_or_resume(self) -> None:
        # What does not pass by itself is said before what may.
        self._ingest.suspend(self._read_only or self._lacking)
        self._begin_if_wanted()

    def _begin_if_wanted(self) -> None:
        if not self._is_due and not self._gave_up and self._wants_group():
            self._is_due = True
            self._group_commit.due(self)

    def _wants_group(self) -> bool:
        others = self._group_commit.in_flight - self._in_flight
        return self._ingest.wants_group(len(self._mailbox), others, self._mailbox.size_bytes)

    def _rest_if_done(self) -> None:
        if not self._mailbox and not self._in_flight:
            self._idle.set()

    def _perform(self, actions: Iterable[Action]) -> AppendRecords | None:
        """Do the actions in order, but for an append, which is the caller's to do."""
        append: AppendRecords | None = None
        for action in actions:
            match action:
                case Publish(data, count):
                    self._publish(data, count)
                case Count(kind, number):
                    self._parts.counts[kind] += number
                case AppendRecords():
                    assert append is None, "one block of messages makes one append"
                    append = action
                case _:
                    assert_never(action)
        return append

    def _publish(self, data: bytes, count: int) -> None:
        """Send answers, unless somebody else may answer for this stream by now."""
        lost = partial(self._parts.counts.update, acks_dropped=count)
        if self._reign.may_speak:
            self._send_acks(data, lost)
        else:
            lost()
