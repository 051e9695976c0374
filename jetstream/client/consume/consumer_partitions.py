"""The partitions of a consumer: how each comes, is read from its cursor on, and is given up or lost."""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from consumer_groups.assignment.partitions import Claim
from consumer_groups.cursors import CursorPosition
from consumer_groups.member.events import StoppedReading
from envelope.errors import JetstreamError
from envelope.types import Offset
from jetstream.client.consume.consumer_commits import Committer, ConsumerCommits
from jetstream.client.consume.coordinator_link import GroupLinks
from jetstream.client.consume.membership import GroupMembership, MemberServices
from jetstream.client.consume.options import ConsumeSettings, PartitionsTold
from jetstream.client.consume.partition_buffers import PartitionBuffer, PartitionBuffers
from jetstream.client.consume.partition_feed import FeedStart, PartitionFeeds
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.read.places import Start, named_offset
from jetstream.protocol.group_requests import FetchCursors
from jetstream.protocol.group_responses import CursorsResponse

_CURSORS_ASKED: Final = 128
"""In one request, so that the answer fits a header."""


@dataclass(frozen=True, slots=True)
class ConsumerServices:
    """The connections, settings and callbacks that the parts of one consumer share."""

    links: NodeLinks
    groups: GroupLinks
    settings: ConsumeSettings
    buffers: PartitionBuffers
    tasks: asyncio.TaskGroup
    failed: Callable[[Exception], None]
    """Called with what the application is to be told instead of a record."""
    ended: Callable[[JetstreamError | None], None]
    """Called when there is no membership any more: because of an error, or as it was wanted."""


class ConsumerPartitions:
    """Reads the partitions of the membership's assignment; see `Reading`."""

    def __init__(self, services: ConsumerServices) -> None:
        """Nothing is asked before the member is given its first event."""
        settings = services.settings
        self._services = services
        self._settings = settings
        self._buffers = services.buffers
        self._tasks: asyncio.TaskGroup = services.tasks
        self.member: Final = GroupMembership(
            settings.group,
            settings.terms,
            MemberServices(services.groups, services.tasks, self, services.ended),
        )
        self.committer: Final = Committer(settings.group, self.member)
        self.commits: Final = ConsumerCommits(settings, services.buffers, self.committer)
        self._feeds = PartitionFeeds(
            services.links, settings, services.buffers, self.commits.has_begun, self._elsewhere
        )
        self._wheres: dict[Claim, FeedStart] = {}
        """Where reading begins that has not begun."""
        self._announced: set[Claim] = set()
        """Partitions that the application was notified of."""
        self.callbacks_running = 0
        """Callbacks of the application that have not returned."""
        self._telling: set[asyncio.Task[None]] = set()
        """Callbacks that nothing else waits for."""

    def seek(self, stream: str, start: Start) -> None:
        """Go on elsewhere; see `Consumer.seek`."""
        buffer = self._buffers.assigned(stream)
        self.commits.go_back(buffer)
        self._buffers.seek(buffer, named_offset(start))
        if not buffer.has_begun.is_set():
            self._wheres[buffer.claim] = FeedStart(start)
        elif buffer.is_open:
            self._feeds.stop(buffer)
            self._feeds.start(buffer, FeedStart(start), self._tasks)

    async def notified(self) -> None:
        """Return when the callbacks for all lost partitions have returned."""
        while self._telling:
            await asyncio.wait(self._telling)

    # --- what the membership wants ------------------------------------------------------------------------

    def start(self, partitions: Mapping[Claim, str]) -> None:
        """Read these."""
        buffers = [self._buffers.open(claim, stream) for claim, stream in partitions.items()]
        self._tasks.create_task(self._begin(buffers))

    def stop(self, claims: tuple[Claim, ...]) -> None:
        """Give these up: idle ones at once, the others when the application is done with them."""
        buffers = self._buffers.of(claims)
        for buffer in buffers:
            self._feeds.stop(buffer)
            self._buffers.stop(buffer)
        idle = [buffer for buffer in buffers if buffer.in_hand is None]
        in_hand = [buffer for buffer in buffers if buffer.in_hand is not None]
        for some in (idle, in_hand):
            if some:
                self._tasks.create_task(self._give_up(some))

    def lose(self, claims: tuple[Claim, ...]) -> None:
        """Drop these."""
        buffers = self._buffers.of(claims)
        known = [buffer for buffer in buffers if buffer.claim in self._announced]
        for buffer in buffers:
            self._feeds.stop(buffer)
        self.commits.lose(buffers)
        self._forget(buffers)
        telling = self._tasks.create_task(self._notify(self._settings.callbacks.on_lost, known))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    # --- coming -------------------------------------------------------------------------------------------

    async def _begin(self, buffers: list[PartitionBuffer]) -> None:
        """Find out where to begin, call the application's callback, read."""
        try:
            await self._find_cursors(buffers)
        except JetstreamError as error:
            self._services.failed(error)
        fresh = [buffer for buffer in buffers if buffer.is_open]
        self._announced |= {buffer.claim for buffer in fresh}
        await self._notify(self._settings.callbacks.on_assigned, fresh)
        for buffer in buffers:
            buffer.has_begun.set()
            where = self._wheres.pop(buffer.claim, None)
            if buffer.is_open and where is not None:
                self._feeds.start(buffer, where, self._tasks)

    async def _find_cursors(self, buffers: list[PartitionBuffer]) -> None:
        for start in range(0, len(buffers), _CURSORS_ASKED):
            some = buffers[start : start + _CURSORS_ASKED]
            partitions = [buffer.claim.partition for buffer in some]
            response = await self.member.ask(partial(FetchCursors.of, self._settings.group, partitions))
            assert isinstance(response, CursorsResponse), "C1: a response has its request's type"
            cursors = response.places()
            for buffer in some:
                if buffer in self._buffers:
                    self._place(buffer, cursors.get(buffer.claim.partition))

    def _place(self, buffer: PartitionBuffer, cursor: CursorPosition | None) -> None:
        self.commits.begin(buffer, cursor)
        where = FeedStart(self._settings.start)
        if cursor is not None:
            where = FeedStart(cursor.offset, cursor.incarnation)
            buffer.place, buffer.incarnation = Offset(cursor.offset), cursor.incarnation
        self._wheres[buffer.claim] = where

    def _elsewhere(self, buffer: PartitionBuffer, error: JetstreamError) -> FeedStart | None:
        """Return where to go on by the ``reset`` option, if any; ``error``: why not at the cursor."""
        del error
        if self._settings.reset is None:
            return None
        self.commits.go_back(buffer)
        self._buffers.seek(buffer, None)
        return FeedStart(self._settings.reset)

    # --- going --------------------------------------------------------------------------------------------

    async def _give_up(self, buffers: list[PartitionBuffer]) -> None:
        """Let the application finish its record, commit, and report that these are free."""
        for buffer in buffers:
            await buffer.has_begun.wait()
            await buffer.is_idle.wait()
        known = [buffer for buffer in buffers if buffer.claim in self._announced]
        await self._notify(self._settings.callbacks.on_revoked, known)
        try:
            await self.commits.last([buffer for buffer in buffers if buffer in self._buffers])
        except JetstreamError as error:
            self._services.failed(error)
        self._forget(buffers)
        self.member.give(StoppedReading(tuple(buffer.claim for buffer in buffers)))

    def _forget(self, buffers: list[PartitionBuffer]) -> None:
        for buffer in buffers:
            self._buffers.close(buffer)
            self._announced.discard(buffer.claim)
            self._wheres.pop(buffer.claim, None)
        self.commits.forget(buffers)

    async def _notify(self, callback: PartitionsTold | None, buffers: list[PartitionBuffer]) -> None:
        """Call the application's callback with partitions, and await what it returns."""
        if callback is None or not buffers:
            return
        self.callbacks_running += 1
        try:
            heard = callback(sorted(buffer.stream for buffer in buffers))
            if inspect.isawaitable(heard):
                await heard
        except Exception as error:  # noqa: BLE001 - the application's own, raised where it asks for records
            self._services.failed(error)
        finally:
            self.callbacks_running -= 1
