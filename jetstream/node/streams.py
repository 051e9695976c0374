"""All streams this node leads: opened from the catalogue, found by name, started and ended."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from envelope.errors import JetstreamError, StreamOffline, Unauthorized
from envelope.types import Incarnation, StreamName, SyncMode, TimestampUs
from jetstream.log.disk import Disk
from jetstream.log.log import Log
from jetstream.log.recovery import Verify
from jetstream.node.gaps import Gap
from jetstream.node.recovery import OpenedStream, open_stream
from jetstream.node.stream import StreamOwner, StreamServices
from jetstream.protocol.responses import NodeMetadata
from metadata.api.responses import GapKind
from metadata.catalog.catalog import Catalog
from metadata.catalog.directories import directory_of
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)

STREAMS_DIRECTORY: Final = "streams"
_OPEN_AT_ONCE: Final = 64


def stream_path(name: StreamName, incarnation: Incarnation) -> str:
    """Return where one life of a stream lies on the node's disk."""
    return f"{STREAMS_DIRECTORY}/{directory_of(name, incarnation)}"


class Streams:
    """The node's streams by name; the `StreamDirectory` of the socket server."""

    def __init__(
        self, disk: Disk, catalog: Catalog, services: StreamServices, tasks: asyncio.TaskGroup, verify: Verify
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._services = services
        self._tasks = tasks
        self._verify = verify
        self._streams: dict[StreamName, StreamOwner] = {}
        self._timers: dict[StreamName, asyncio.Task[None]] = {}
        self._offline: dict[StreamName, JetstreamError] = {}

    def __iter__(self) -> Iterator[StreamOwner]:
        """Yield every open stream."""
        return iter(tuple(self._streams.values()))

    # --- what readers ask (StreamDirectory) --------------------------------------------------------

    def stream(self, name: str) -> StreamOwner | None:
        """Return the open stream, None if there is none.

        Raises:
            StreamOffline: the catalogue has it, but its log is not open (yet).
        """
        found = self._streams.get(StreamName(name))
        if found is None and self._catalog.stream(StreamName(name)) is not None:
            problem = self._offline.get(StreamName(name))
            reason = "it is being recovered" if problem is None else problem.description
            raise StreamOffline(f"stream {name} is offline: {reason}")
        return found

    def names(self) -> Sequence[str]:
        """Return the names of all streams, ascending."""
        return [stream.name for stream in self._catalog.streams()]

    def problems(self) -> Iterator[tuple[StreamName, JetstreamError]]:
        """Yield every stream that does not take or does not serve records, and why; ascending."""
        for row in self._catalog.streams():
            stream = self._streams.get(row.name)
            if stream is None:
                yield row.name, self._offline.get(row.name, StreamOffline("it is being recovered"))
            elif (error := stream.log.failed or stream.route.problem) is not None:
                yield row.name, error

    def nodes(self) -> Sequence[NodeMetadata]:
        """Return all nodes of the cluster."""
        return [
            NodeMetadata(id=node.node_id, host=node.host, port=node.port) for node in self._catalog.nodes()
        ]

    # --- life ------------------------------------------------------------------------------------

    async def open_all(self, streams: Iterable[Stream]) -> None:
        """Recover every stream's log; one that cannot be opened is offline, the others serve."""
        waiting = list(streams)
        for start in range(0, len(waiting), _OPEN_AT_ONCE):
            some = waiting[start : start + _OPEN_AT_ONCE]
            for stream, opened in await self._services.disk.call(partial(self._open_some, some)):
                self._admit(stream, opened)
            _log.info(
                "streams recovered count=%d of=%d", min(start + _OPEN_AT_ONCE, len(waiting)), len(waiting)
            )

    def _open_some(self, streams: list[Stream]) -> list[tuple[Stream, OpenedStream | JetstreamError]]:
        """On the disk thread: open each, keeping each one's failure to itself."""
        results: list[tuple[Stream, OpenedStream | JetstreamError]] = []
        for stream in streams:
            try:
                results.append((stream, self._open_one(stream)))
            except JetstreamError as error:
                results.append((stream, error))
        return results

    def _open_one(self, stream: Stream) -> OpenedStream:
        path = stream_path(stream.name, stream.incarnation)
        now = self._services.clock.wall()
        return open_stream(self._disk, path, stream.config, stream.leader_epoch, now, self._verify)

    def _admit(self, stream: Stream, opened: OpenedStream | JetstreamError) -> StreamOwner | None:
        if isinstance(opened, JetstreamError):
            _log.error("stream not opened stream=%s error=%r runbook=RB-01", stream.name, opened)
            self._offline[stream.name] = opened
            return None
        owner = StreamOwner(stream.config, stream.incarnation, opened, self._services)
        self._streams[stream.name] = owner
        self._follow_sync_mode(owner)
        return owner

    async def attach_all(self) -> None:
        """Subscribe every recovered stream to its subject, and say since when nobody may have listened."""
        for stream in self:
            with suppress(Unauthorized):  # logged, and told in the stream's info
                await stream.attach()
            row = self._catalog.stream(stream.name)
            since = max(stream.log.last_timestamp, row.created if row is not None else TimestampUs(0))
            stream.gaps.add(Gap(GapKind.RESTART, since, self._services.clock.wall()))

    async def start(self, stream: Stream) -> None:
        """Open a new stream and subscribe it.

        Raises:
            JetstreamError: its log could not be created; it is offline.
        """
        opened = await self._services.disk.call(partial(self._open_some, [stream]))
        owner = self._admit(*opened[0])
        if owner is None:
            raise StreamOffline(f"stream {stream.name} is offline: {self._offline[stream.name].description}")
        await owner.attach()

    async def reconfigure(self, stream: Stream) -> None:
        """Give an open stream its changed configuration."""
        owner = self._streams.get(stream.name)
        if owner is None:
            return
        moved = (owner.config.subject, owner.config.group) != (stream.config.subject, stream.config.group)
        if moved:
            await owner.detach()
        await self._services.disk.call(lambda: owner.upkeep.reconfigure(stream.config))
        owner.reconfigure(stream.config)
        self._follow_sync_mode(owner)
        if moved:
            await owner.attach()

    async def end(self, name: StreamName) -> None:
        """Stop a deleted stream: leave its subject, finish its mailbox, close its log."""
        self._offline.pop(name, None)
        self._stop_timer(name)
        owner = self._streams.pop(name, None)
        if owner is None:
            return
        await owner.detach()
        await owner.drained()
        await owner.close()

    async def remove_files(self, name: StreamName, incarnation: Incarnation) -> None:
        """Remove one life of a stream from the disk, durably."""
        path = stream_path(name, incarnation)
        await self._services.disk.call(lambda: Log.delete(self._disk, path))

    def note(self, gap: Gap) -> None:
        """Add an interruption of the ingest connection to every stream's possible gaps."""
        for stream in self:
            stream.gaps.add(gap)

    async def drain(self) -> None:
        """Leave every subject and finish every mailbox: what NATS had delivered is stored and acked."""
        for stream in self:
            await stream.detach()
        for stream in self:
            self._stop_timer(stream.name)
        for stream in self:
            await stream.drained()

    async def close(self) -> None:
        """Sync and close every log."""
        for stream in self:
            try:
                await stream.close()
            except JetstreamError as error:
                _log.error("log not closed cleanly stream=%s error=%r runbook=RB-01", stream.name, error)

    def _follow_sync_mode(self, owner: StreamOwner) -> None:
        wants = owner.config.sync is SyncMode.INTERVAL
        if wants and owner.name not in self._timers:
            self._timers[owner.name] = self._tasks.create_task(owner.sync_by_interval())
        elif not wants:
            self._stop_timer(owner.name)

    def _stop_timer(self, name: StreamName) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
