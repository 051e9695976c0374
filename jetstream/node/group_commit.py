"""Takes the next group of every stream that is due to the disk thread, all in one hand-over.

A stream is due when messages wait in its mailbox and none of its groups is in flight. While the disk thread
writes and syncs, the next groups gather; when it is done, all their acks leave together and the next groups
start at once: that is group commit, across messages, connections and streams alike (docs/adr/0002).
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from envelope.errors import JetstreamError, StreamOffline
from jetstream.node.crash import Crash
from jetstream.node.disk_thread import DiskThread, GroupAppend


class Appender(Protocol):
    """A stream, as group commit knows it."""

    def next_group(self) -> GroupAppend | None:
        """Begin the next group; None if nothing is to be appended: the stream is no longer due."""

    def appended(self, error: JetstreamError | None) -> bool:
        """End the group with the outcome of its append; tell whether the stream is due again."""

    def give_up(self) -> None:
        """Do nothing any more: an error of ours has left the stream in an unknown state."""


class GroupCommit:
    """Runs the groups of all streams of a node; every method is called on the event loop's thread."""

    def __init__(self, disk: DiskThread, flush_acks: Callable[[], None], crash: Crash) -> None:
        """Append on ``disk``; call ``flush_acks`` when groups have ended."""
        self._disk = disk
        self._flush_acks = flush_acks
        self._crash = crash
        self._loop = asyncio.get_running_loop()
        self._due: list[Appender] = []

    def due(self, stream: Appender) -> None:
        """Begin a group of ``stream`` once everything that has been received is delivered."""
        if not self._due:
            self._loop.call_soon(self._begin)
        self._due.append(stream)

    def _begin(self) -> None:
        due, self._due = self._due, []
        owners: list[Appender] = []
        appends: list[GroupAppend] = []
        for stream in due:
            try:
                append = stream.next_group()
            except Exception as error:  # noqa: BLE001 - an error of ours: the node stops
                self._break_down(stream, error)
                continue
            if append is not None:
                owners.append(stream)
                appends.append(append)
        if appends:
            try:
                self._disk.append(appends, lambda: self._end(owners, appends))
            except StreamOffline as error:  # the node has stopped its disk before its streams
                for stream in owners:
                    self._break_down(stream, error)

    def _end(self, owners: Sequence[Appender], appends: Sequence[GroupAppend]) -> None:
        for stream, append in zip(owners, appends, strict=True):
            try:
                if stream.appended(append.error):
                    self._due.append(stream)
            except Exception as error:  # noqa: BLE001 - an error of ours: the node stops
                self._break_down(stream, error)
        # The disk works while the acks are on their way to the kernel.
        self._begin()
        self._flush_acks()

    def _break_down(self, stream: Appender, error: Exception) -> None:
        self._crash.report(error)
        stream.give_up()
