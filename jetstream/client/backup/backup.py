"""Copies a running cluster to a folder or an object store, consistent at committed offsets.

Theory of operation: first the list of streams, then their records: those of the system's own streams before
all others. So a cursor is never ahead of the records that it is in: these were committed before it was. A
stream that is created meanwhile is not part of the backup, nor one that is deleted meanwhile.

Records never change below the high watermark. So of a stream that the last backup at that place has, only
what came since is read; except where single records may have gone (`compact`): there all is read, and only
what differs is written.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from envelope.errors import (
    DivergedHistory,
    JetstreamError,
    OffsetOutOfRange,
    StreamRecreated,
    UnavailableError,
    UnknownStream,
)
from envelope.internal_streams import is_internal
from envelope.types import Compact, Incarnation, LeaderEpoch, Offset, TimestampUs
from jetstream.client.backup.plan import CutObject, ObjectCut, RangeMerged, complete_sets, ending_by, reusable
from jetstream.client.connection import JetstreamClient
from jetstream.client.read.fetch_pipeline import ReaderPlace
from jetstream.client.read.records import to_timestamp
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.backups.manifest import BackedUpNamespace, BackedUpStream, BackupManifest, BackupObject
from metadata.api.namespace_responses import NamespaceInfo
from metadata.api.publisher_responses import StreamPublishers
from metadata.api.responses import StreamInfo
from metadata.namespaces import EVERYWHERE, NamespaceLimits

_WRITERS: Final = 3
"""Objects that are hashed and written at once, each of up to `OBJECT_BYTES`."""
_ATTEMPTS_MAX: Final = 10
"""Of one stream whose retention is faster than its backup, and of lists of streams that differ."""
_PATIENCE_S: Final = 60.0
"""How long a leader is waited for."""
_PAUSE_S: Final = 0.25

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupProgress:
    """How far a backup is.

    Attributes:
        streams: that are through.
        total: streams there are.
        read: bytes that were read of the cluster.
        written: bytes that were not at the backups' place before.
    """

    streams: int = 0
    total: int = 0
    read: int = 0
    written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupMade:
    """A backup that exists.

    Attributes:
        name: of its manifest.
        manifest: itself.
        left_out: streams that were deleted meanwhile.
        damaged: manifests of newer backups at that place that are damaged, or were never finished.
        progress: how much it was.
    """

    name: str
    manifest: BackupManifest
    left_out: tuple[str, ...]
    damaged: tuple[str, ...]
    progress: BackupProgress


class Backup:
    """One backup of a cluster; used once.

    Attributes:
        progress: changes while it runs.
    """

    def __init__(self, client: JetstreamClient, store: BackupStore, version: str) -> None:
        """Nothing is asked before `run`; ``version`` of Jetstream is put on record."""
        self.progress = BackupProgress()
        self._client = client
        self._store = store
        self._version = version

    async def run(self) -> BackupMade:
        """Make the backup; it exists, durably, when this returns.

        Interrupted, it leaves objects that the next one at this place finds, and no backup.

        Raises:
            TierUnavailable: the place of the backups refused.
            JetstreamError: a stream has no leader, is damaged at every replica, or may not be read.
        """
        last, damaged = await asyncio.to_thread(self._store.newest_readable)
        known = frozenset() if last is None else await asyncio.to_thread(self._store.present, last)
        created_at = TimestampUs(time.time_ns() // 1000)
        if last is not None:
            created_at = max(created_at, TimestampUs(last.created_at + 1))
        cluster = await patiently(self._client.requests.cluster_info)
        namespaces, infos = await self._limits_and_infos()
        self.progress = replace(self.progress, total=len(infos))
        streams = await self._copied(infos, last, known)
        there = tuple(complete_sets(streams, [info.config for info in infos]))
        manifest = BackupManifest(
            created_at=created_at,
            version=self._version,
            default_replicas=cluster.default_replicas,
            namespaces=tuple(
                BackedUpNamespace(
                    EVERYWHERE if each.name is None else each.name,
                    NamespaceLimits.model_validate(each.limits.model_dump()),
                )
                for each in namespaces
            ),
            streams=there,
        )
        name = await asyncio.to_thread(self._store.put_manifest, manifest)
        kept = {stream.name for stream in there}
        left_out = tuple(info.config.name for info in infos if info.config.name not in kept)
        return BackupMade(
            name=name, manifest=manifest, left_out=left_out, damaged=damaged, progress=self.progress
        )

    async def _limits_and_infos(self) -> tuple[list[NamespaceInfo], list[StreamInfo]]:
        """Return limits of namespaces, and streams as they were while these were in force.

        Raises:
            UnavailableError: limits change all the time.
        """
        for _ in range(_ATTEMPTS_MAX):
            before = await patiently(lambda: self._client.namespaces.list(limited=True))
            infos = await self._infos()
            after = await patiently(lambda: self._client.namespaces.list(limited=True))
            if [(each.name, each.limits) for each in before] == [(each.name, each.limits) for each in after]:
                return after, infos
        raise UnavailableError("limits of namespaces change all the time")

    async def _infos(self) -> list[StreamInfo]:
        """Return what streams there are: the system's own first, otherwise in the order of their names."""
        infos: list[StreamInfo] = []
        for name in await self._names():
            try:
                infos.append(await patiently(partial(self._client.streams.info, name)))
            except UnknownStream:  # deleted since
                continue
        return sorted(infos, key=lambda info: (not is_internal(info.config.name), info.config.name))

    async def _names(self) -> list[str]:
        """Return the names of all streams, with none left out.

        A list in pages may leave one out while others are deleted; two that are equal have not.

        Raises:
            UnavailableError: streams come and go all the time.
        """
        before: list[str] | None = None
        for _ in range(_ATTEMPTS_MAX):
            listed = await patiently(lambda: self._client.streams.list(internal=True))
            names = [summary.name for summary in listed]
            if names == before:
                return names
            before = names
        raise UnavailableError("streams are created and deleted all the time: none can be sure of the list")

    async def _copied(
        self, infos: Sequence[StreamInfo], last: BackupManifest | None, known: Collection[str]
    ) -> list[BackedUpStream]:
        with ThreadPoolExecutor(_WRITERS, "jetstream-backup") as threads:
            objects = ObjectWriter(self._store, threads, known, self._has_written)
            copies: list[StreamCopy] = []
            try:
                for info in infos:
                    before = None if last is None else last.stream(info.config.name, info.incarnation)
                    if before is not None and not all(each.sha256 in known for each in before.objects):
                        before = None  # somebody has removed objects of it
                    copy = StreamCopy(self._client, objects, info, before)
                    await copy.run(self._has_read)
                    copies.append(copy)
                    self.progress = replace(self.progress, streams=self.progress.streams + 1)
            finally:
                await objects.settled()
            return [stream for copy in copies if (stream := await copy.stream()) is not None]

    def _has_read(self, count: int) -> None:
        self.progress = replace(self.progress, read=self.progress.read + count)

    def _has_written(self, count: int) -> None:
        self.progress = replace(self.progress, written=self.progress.written + count)


async def patiently(question: Callable[[], Awaitable[T]]) -> T:
    """Ask, and again while nobody can answer: there may be no leader just now.

    Raises:
        JetstreamError: an error that is not retriable, or the last one after `_PATIENCE_S`.
    """
    gives_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return await question()
        except JetstreamError as error:
            if not error.retriable or time.monotonic() > gives_up_at:
                raise
        await asyncio.sleep(_PAUSE_S)


class ObjectWriter:
    """Hashes objects and stores those that are new, some at once."""

    def __init__(
        self,
        store: BackupStore,
        threads: ThreadPoolExecutor,
        known: Collection[str],
        written: Callable[[int], None],
    ) -> None:
        """``known``: the hashes of objects that are there, durably."""
        self._store = store
        self._threads = threads
        self._known = known
        self._written = written
        self._pending: deque[asyncio.Future[BackupObject]] = deque()

    async def put(self, cut: CutObject) -> "asyncio.Future[BackupObject]":
        """Begin to store an object, once there is room; the future is done when it is durable.

        Raises:
            TierUnavailable: an earlier one could not be stored.
        """
        while len(self._pending) >= _WRITERS:
            await self._pending.popleft()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[BackupObject] = loop.run_in_executor(self._threads, self._stored, cut, loop)
        self._pending.append(future)
        return future

    async def settled(self) -> None:
        """Return when nothing is being stored any more, whatever came of it."""
        await asyncio.gather(*self._pending, return_exceptions=True)

    def _stored(self, cut: CutObject, loop: asyncio.AbstractEventLoop) -> BackupObject:
        sha256, is_new = self._store.put_object(cut.chunks(), self._known)
        if is_new:
            loop.call_soon_threadsafe(self._written, cut.size)
        return cut.described(sha256)


class StreamCopy:
    """The copy of one stream.

    Invariants:
        C35: the objects of a copy tile its offsets: each goes on exactly where the one before it ends.
            Held by test_what_was_merged_since_the_last_backup_is_copied_once.
    """

    def __init__(
        self, client: JetstreamClient, writer: ObjectWriter, info: StreamInfo, before: BackedUpStream | None
    ) -> None:
        """``before``: the same life of the stream in the last backup."""
        self._client = client
        self._writer = writer
        self._info = info
        self._before = before
        self._objects: list[BackupObject | asyncio.Future[BackupObject]] = []
        self._range: tuple[Offset, Offset] | None = None
        self._publishers: StreamPublishers | None = None

    async def run(self, has_read: Callable[[int], None]) -> None:
        """Read what is to be copied; it may still be on its way to the store when this returns."""
        before = self._before
        for attempts_left in reversed(range(_ATTEMPTS_MAX)):
            began = time.monotonic()
            try:
                await self._read(before, has_read)
                if await self._may_lack_tombstones(time.monotonic() - began):
                    if not attempts_left:
                        raise UnavailableError(
                            f"stream {self._info.config.name!r} is read more slowly than its tombstones go"
                        )
                    continue
            except (UnknownStream, StreamRecreated):
                self._range = None
                if not await self._is_there():
                    return
                if not attempts_left:  # nodes that are out of touch do not know it
                    raise UnavailableError(
                        f"not every node knows stream {self._info.config.name!r}"
                    ) from None
                await asyncio.sleep(_PAUSE_S)
            except (DivergedHistory, OffsetOutOfRange) as error:
                # An unclean election has chosen other records, or retention was faster.
                if not attempts_left:
                    raise
                before = None if isinstance(error, DivergedHistory) else before
            else:
                return

    async def _may_lack_tombstones(self, read_s: float) -> bool:
        """Return whether tombstones may have gone whose records had been read before."""
        info = await patiently(lambda: self._client.streams.info(self._info.config.name))
        config = info.config
        return Compact.KEY in (config.compact, self._info.config.compact) and (
            read_s >= config.tombstone_retention.total_seconds()
        )

    async def _is_there(self) -> bool:
        try:
            info = await patiently(lambda: self._client.streams.info(self._info.config.name))
        except UnknownStream:
            return False
        return info.incarnation == self._info.incarnation

    async def stream(self) -> BackedUpStream | None:
        """Return the stream once all of it is stored; None: it was deleted meanwhile."""
        if self._range is None or self._publishers is None:
            return None
        objects = tuple(await self._settled())
        start, end = self._range
        return BackedUpStream(
            config=self._info.config,
            incarnation=Incarnation(self._info.incarnation),
            created=to_timestamp(self._info.created_at),
            leader_epoch=LeaderEpoch(self._info.leader_epoch),
            start=start,
            end=objects[-1].next if objects else end,
            publishers=self._publishers,
            objects=objects,
        )

    async def _read(self, before: BackedUpStream | None, has_read: Callable[[int], None]) -> None:
        name, incarnation = self._info.config.name, Incarnation(self._info.incarnation)
        # First, so that nothing is told of records behind the end.
        self._publishers = await patiently(lambda: self._client.streams.publishers(name))
        start, end = await self._committed(name, incarnation)
        self._objects = [*reusable(before, self._info.config, start, end)]
        self._range = start, end
        while True:
            settled = await self._settled()
            position = settled[-1].next if settled else start
            place = ReaderPlace(position, settled[-1].last_epoch if settled else None, incarnation)
            cut = ObjectCut(position, is_first=not settled)
            try:
                async with aclosing(self._client.stored_batches(name, place, end)) as parts:
                    async for part in parts:
                        for complete in cut.add(part.body, part.batches):
                            self._objects.append(await self._writer.put(complete))
                        has_read(len(part.body))
                for last in cut.finish():
                    self._objects.append(await self._writer.put(last))
            except RangeMerged as merged:
                # The object that is not complete goes, too: it ends behind that base.
                self._objects = [*ending_by(await self._settled(), merged.base)]
            else:
                return

    async def _committed(self, name: str, incarnation: Incarnation) -> tuple[Offset, Offset]:
        ranges = await self._client.ranges([name], patience_s=_PATIENCE_S)
        if name not in ranges or ranges[name].incarnation != incarnation:
            raise UnknownStream(f"stream {name!r} was deleted")
        return ranges[name].start, ranges[name].end

    async def _settled(self) -> list[BackupObject]:
        return [each if isinstance(each, BackupObject) else await each for each in self._objects]
