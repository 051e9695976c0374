"""The append loop of one stream that this node leads: at most one group due, some in flight, until its end.

While a group is written and synced, the next one gathers in its source; `GroupCommit` schedules it when it is
due. Followers get a group when it is written, so that they sync it while this node does.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from envelope.errors import DiskFull, JetstreamError, StreamOffline
from envelope.types import TimestampUs
from jetstream.ingest.machine import AppendRecords
from jetstream.log.format.plain_batch_encoder import encode_records
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.replicas.context import NodeServices, ReplicaContext
from jetstream.node.replicas.leadership import LeaderDriver

_log = logging.getLogger(__name__)


class GroupSource(Protocol):
    """Gathers what is to be appended, and handles the outcomes in order."""

    @property
    def waiting(self) -> int:
        """Messages or writes that are in no append yet."""

    def wants_group(self, others_in_flight: int) -> bool:
        """Return whether a group is due while other streams have so many appends in flight."""

    def begin_group(self, now: TimestampUs) -> AppendRecords | None:
        """Return the next append; None if what waited needs none."""

    def appended(self, append: GroupAppend) -> None:
        """Answer who waits for the oldest append, which is stored."""

    def append_refused(self, error: JetstreamError) -> None:
        """Refuse what is in the oldest append: nothing of it is stored."""

    def append_unknown(self, error: JetstreamError) -> None:
        """Answer nobody who waits for the oldest append: whether it is stored is unknown."""

    def hurry(self) -> None:
        """Begin every group as soon as possible from now on."""


class AppendLoop:
    """The stream's `Appender` for one reign.

    Attributes:
        has_ended: nothing more is appended, and no outcome is handled.
        ended: called once when that begins.
    """

    def __init__(
        self, source: GroupSource, context: ReplicaContext, driver: LeaderDriver, services: NodeServices
    ) -> None:
        self.has_ended = False
        self.ended: Callable[[], None] = lambda: None
        self._source = source
        self._context = context
        self._driver = driver
        self._clock = services.clock
        self._group_commit = services.group_commit
        self._is_due = False
        self._in_flight = 0
        self._is_given_up = False
        self._drained: asyncio.Event | None = None  # while somebody waits for it

    def begin_if_wanted(self) -> None:
        """Schedule a group if the source wants one and none is scheduled."""
        if self._is_due or self.has_ended:
            return
        if self._source.wants_group(self._group_commit.in_flight - self._in_flight):
            self._is_due = True
            self._group_commit.due(self)

    async def drained(self) -> None:
        """Return when the source is empty and no group is in flight; nothing more is to be offered."""
        self._source.hurry()
        self.begin_if_wanted()
        self._drained = drained = self._drained or asyncio.Event()
        self._notify_if_drained()
        await drained.wait()

    def stop(self) -> None:
        """Append nothing more and drop all outcomes; `drained` waits for what is in flight."""
        self._end()
        self._notify_if_drained()

    # --- groups (Appender) -----------------------------------------------------------------------

    def next_group(self) -> GroupAppend | None:
        """Return the next group; None if what waited needs no append, or is to gather."""
        self._is_due = False
        while (
            not self.has_ended
            and not self._is_due
            and self._source.wants_group(self._group_commit.in_flight - self._in_flight)
        ):
            now = self._clock.wall()
            append = self._source.begin_group(now)
            if append is not None:
                self._in_flight += 1
                batches = encode_records(
                    append.records, append.base, append.leader_epoch, self._context.config.compression
                )
                group, note = GroupAppend(self._context.log, batches, now), self._context.opened.note
                group.note = note
                group.stored = partial(
                    note.appended, group.end, group.txid, group.size, append.places, len(batches)
                )
                if self._driver.is_replicated:
                    group.written = partial(self._driver.written, batches)
                return group
        self._notify_if_drained()
        return None

    def appended(self, append: GroupAppend) -> bool:
        """Handle the outcome of the oldest group; return whether the next one is due."""
        self._in_flight -= 1
        if self.has_ended:
            self.stop()
            return False
        error = append.error
        if error is None:
            self._context.upkeep.appended()
            self._source.appended(append)
            self._driver.appended(append.end)
        elif isinstance(error, DiskFull | StreamOffline):
            _log.warning("append refused stream=%s error=%s", self._context.name, error)
            self._source.append_refused(error)
        else:
            _log.error("stream offline stream=%s error=%r runbook=RB-01", self._context.name, error)
            self._source.append_unknown(error)
        if self._is_due or self.has_ended:
            return False
        self._is_due = self._source.wants_group(self._group_commit.in_flight - self._in_flight)
        if self._drained is not None:
            self._notify_if_drained()
        return self._is_due

    def give_up(self) -> None:
        """Append nothing more: what of the appends in flight is stored is unknown."""
        self._is_given_up = True
        self._end()
        self._notify_if_drained()

    def _end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self.ended()

    def _notify_if_drained(self) -> None:
        waiting = 0 if self.has_ended else self._source.waiting
        if self._drained is not None and (self._is_given_up or not (self._in_flight or waiting)):
            self._drained.set()
            self._drained = None
