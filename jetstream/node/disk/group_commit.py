"""Takes the next group of every stream that is due to the disk thread, all in one hand-over.

A stream is due when its publish machine wants the messages that wait. While the disk thread writes and syncs,
the next groups gather; when it is done, all acks leave together, and then the next groups start: that is
group commit, across messages, connections and streams alike (ADR 0002).
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from envelope.errors import StreamOffline
from jetstream.node.disk.appends import GroupAppend
from jetstream.node.disk.thread import DiskThread
from jetstream.node.runtime.crash import Crash

T = TypeVar("T")


class Appender(Protocol):
    """A stream, as group commit knows it."""

    def next_group(self) -> GroupAppend | None:
        """Begin the next group; None if nothing is to be appended: the stream is no longer due."""

    def appended(self, append: GroupAppend) -> bool:
        """End the oldest group, whose outcome is known; return whether the stream is due again."""

    def give_up(self) -> None:
        """Do nothing any more: an error of ours has left the stream in an unknown state."""


class GroupCommit:
    """Runs the groups of all streams of a node; every method is called on the event loop's thread.

    Attributes:
        in_flight: groups handed over together whose ends their streams do not know yet.
    """

    def __init__(self, disk: DiskThread, flush_acks: Callable[[], None], crash: Crash) -> None:
        """Append on ``disk``; call ``flush_acks`` when groups have ended."""
        self._disk = disk
        self._flush_acks = flush_acks
        self._crash = crash
        self._loop = asyncio.get_running_loop()
        self._due: list[Appender] = []
        self.in_flight = 0

    def due(self, stream: Appender) -> None:
        """Begin a group of ``stream`` once everything that has been received is delivered."""
        if not self._due:
            self._loop.call_soon(self._begin)
        self._due.append(stream)

    def _begin(self) -> None:
        due, self._due = self._due, []
        streams: list[Appender] = []
        appends: list[GroupAppend] = []
        for stream in due:
            append = self._guarded(stream, stream.next_group)
            if append is not None:
                streams.append(stream)
                appends.append(append)
        if appends:
            self.in_flight += len(appends)
            try:
                self._disk.append(appends, partial(self._end, streams, appends))
            except StreamOffline as error:  # the node has stopped its disk before its streams
                for stream in streams:
                    self._break_down(stream, error)

    def _end(self, streams: Sequence[Appender], appends: Sequence[GroupAppend]) -> None:
        self.in_flight -= len(appends)
        for stream, append in zip(streams, appends, strict=True):
            if self._guarded(stream, partial(stream.appended, append)):
                # Not at once: what came while the disk was at work, and is not read yet, belongs to it.
                self.due(stream)
        self._flush_acks()

    def _guarded(self, stream: Appender, act: Callable[[], T]) -> T | None:
        """Do something with a stream; an error of ours stops the node, where it would only be logged."""
        try:
            return act()
        except Exception as error:  # noqa: BLE001 - the supervisor of the streams
            self._break_down(stream, error)
            return None

    def _break_down(self, stream: Appender, error: Exception) -> None:
        self._crash.report(error)
        stream.give_up()
