"""The node's object store: segments that readers want are brought in, kept for a while, and dropped again.

Everything is owned by the loop's thread; threads of its own do what blocks. Segments that were brought in lie
below ``tier`` in the data directory, up to a limit in bytes, and are gone after a restart.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from envelope.errors import JetstreamError, TierUnavailable
from envelope.types import MonotonicNs
from jetstream.log.disk.port import Disk
from jetstream.log.reader import LogReader
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.daemon_threads import DaemonThreads
from jetstream.node.settings.node_config import NodeConfig
from jetstream.tier.download import download_manifest, download_segment
from jetstream.tier.manifest import TieredSegment, TierManifest
from jetstream.tier.object_store import ObjectStore
from jetstream.tier.retries import FailedAttempts, failed_again

_log = logging.getLogger(__name__)
T = TypeVar("T")

DIRECTORY: Final = "tier"
_READ_AGAIN_NS_MAX: Final = 5_000_000_000
"""A reader is refused for so long at most before the store is asked again."""
_FAILED_KEPT_MAX: Final = 1024
_THREADS: Final = 2
MOVING_NS: Final = 5_000_000_000
"""A transfer without a byte for so long is a store that does not answer."""
STOP_SECONDS: Final = 5.0


class TierCounters:
    """Counts since the start of the node; written on the loop.

    Attributes:
        objects: how many, by what was done.
        bytes: of segments.
    """

    def __init__(self) -> None:
        events = ("uploaded", "upload_failed", "downloaded", "download_failed", "deleted")
        self.objects: Counter[str] = Counter(dict.fromkeys(events, 0))
        self.bytes: Counter[str] = Counter(uploaded=0, downloaded=0)

    def moved(self, event: str, segment: TieredSegment) -> None:
        """Count a segment that was uploaded or downloaded."""
        self.objects[event] += 1
        self.bytes[event] += segment.size


@dataclass(slots=True, eq=False)
class Held:
    """A segment that was brought in; ``used`` is larger the later it was read."""

    log: LogReader
    segment: TieredSegment
    used: int


@dataclass(slots=True, eq=False)
class SegmentDownload:
    """A segment on its way in."""

    task: "asyncio.Task[None]"
    moved_at: MonotonicNs


@dataclass(slots=True)
class _Known:
    """The objects that are here, on their way, or failed, by path."""

    held: dict[str, Held] = field(default_factory=dict)
    transfers: dict[str, SegmentDownload] = field(default_factory=dict)
    failed: dict[str, FailedAttempts] = field(default_factory=dict)


class Tier:
    """A node's object store and the segments brought in from it."""

    def __init__(
        self,
        store: ObjectStore | None,
        disk: Disk,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        held_bytes_max: int,
        root: Path | None = None,
    ) -> None:
        """Nothing of an earlier start is used.

        Args:
            store: None: the node has none.
            disk: for what is brought in.
            clock: of the pauses between attempts.
            tasks: for what is on its way.
            held_bytes_max: bytes that are kept, in whole segments, but at least the newest.
            root: of the disk in the file system.
        """
        self.counters = TierCounters()
        self._store = store
        self._disk = disk
        self._clock = clock
        self._tasks: asyncio.TaskGroup = tasks
        self._held_bytes_max = held_bytes_max
        self._root = root
        self._known = _Known()
        self.answered_at = clock.monotonic()
        """When the store last did something for `write`, or was first asked to."""
        self._numbers = count(1)
        self._readers = DaemonThreads("jetstream-tier-reader", _THREADS)
        self._writer = DaemonThreads("jetstream-tier-writer", 1)
        if disk.exists(DIRECTORY):
            disk.remove_tree(DIRECTORY)

    @property
    def store(self) -> ObjectStore:
        """The store.

        Raises:
            TierUnavailable: the node has none.
        """
        if self._store is None:
            raise TierUnavailable("this node has no object store: set `tier` in its configuration")
        return self._store

    @property
    def has_store(self) -> bool:
        """Whether the node has one."""
        return self._store is not None

    @property
    def held_bytes(self) -> int:
        """Bytes that were brought in and are still here."""
        return sum(held.segment.size for held in self._known.held.values())

    # --- segments ----------------------------------------------------------------------------------

    def held(self, segment: TieredSegment) -> LogReader | None:
        """Return a segment that was brought in; on any thread."""
        found = self._known.held.get(segment.path)
        if found is None:
            return None
        found.used = next(self._numbers)
        return found.log

    def is_moving(self, segment: TieredSegment) -> bool:
        """Return whether bytes of a segment have come in lately."""
        transfer = self._known.transfers.get(segment.path)
        return transfer is not None and self._clock.monotonic() - transfer.moved_at < MOVING_NS

    def bring_in(self, segment: TieredSegment) -> "asyncio.Task[None]":
        """Begin to bring a segment in, unless that has begun; done when it is held.

        Raises:
            TierUnavailable: it failed a moment ago, and is not tried again yet.
        """
        transfer = self._known.transfers.get(segment.path)
        if transfer is None:
            self.refuse_for_now(self._known.failed.get(segment.path))
            transfer = self._begin(segment)
        return transfer.task

    def _begin(self, segment: TieredSegment) -> SegmentDownload:
        task = self._tasks.create_task(self._bring_in(segment))
        transfer = self._known.transfers[segment.path] = SegmentDownload(task, self._clock.monotonic())
        return transfer

    def begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do ``work``, which raises nothing, beside everything else."""
        return self._tasks.create_task(work)

    def refuse_for_now(self, failed: FailedAttempts | None) -> None:
        """Raise what the last attempt raised, unless it is time for another one."""
        if failed is not None and self._clock.monotonic() < failed.again_at:
            raise failed.error

    def failed_now(self, before: FailedAttempts | None, error: JetstreamError) -> FailedAttempts:
        """Return what is known after another attempt of a reader's has failed."""
        return failed_again(before, error, self._clock.monotonic(), _READ_AGAIN_NS_MAX)

    def look_ahead(self, manifest: TierManifest, segment: TieredSegment) -> None:
        """Bring in what follows a segment that is being read, if nothing else is on its way."""
        following = manifest.after(segment)
        known = self._known
        if following is None or known.transfers or following.path in known.held:
            return
        if following.path not in known.failed:  # who comes to it hears of that, and tries again
            self._begin(following)

    async def _bring_in(self, segment: TieredSegment) -> None:
        directory = f"{DIRECTORY}/{next(self._numbers)}"
        known, path = self._known, segment.path
        try:
            log = await self._readers.run(
                partial(
                    download_segment,
                    self.store,
                    self._disk,
                    directory,
                    segment,
                    progressed=partial(self._moved, path),
                    root=self._root,
                ),
            )
        except JetstreamError as error:
            _log.warning("segment not brought in path=%s error=%s runbook=RB-11", path, error)
            self.counters.objects["download_failed"] += 1
            while len(known.failed) >= _FAILED_KEPT_MAX:
                del known.failed[next(iter(known.failed))]
            known.failed[path] = self.failed_now(known.failed.pop(path, None), error)
        else:
            known.failed.pop(path, None)
            known.held[path] = Held(log, segment, next(self._numbers))
            self.counters.moved("downloaded", segment)
            self._drop_unused(path)
        finally:
            del known.transfers[path]

    def _moved(self, path: str) -> None:
        """Note that bytes came; called on a thread."""
        transfer = self._known.transfers.get(path)
        if transfer is not None:
            transfer.moved_at = self._clock.monotonic()

    def _drop_unused(self, newest: str) -> None:
        """Drop what was read longest ago while there is too much; readers keep the files they have open."""
        held = self._known.held
        for path in sorted(held, key=lambda path: held[path].used):
            if self.held_bytes <= self._held_bytes_max:
                return
            if path == newest:
                continue
            log = held.pop(path).log
            for segment in log.segments:
                segment.retire(is_replaced=True)
            self._tasks.create_task(self._removed(log.directory), name="segment dropped")

    async def _removed(self, directory: str) -> None:
        try:
            await self._readers.run(partial(self._disk.remove_tree, directory))
        except JetstreamError as error:  # the next start tries again
            _log.error("segment not dropped directory=%s error=%s runbook=RB-01", directory, error)

    # --- everything else ---------------------------------------------------------------------------

    async def manifest(self, path: str) -> TierManifest:
        """Return the manifest in an object; raises `TierUnavailable`."""
        return await self._readers.run(partial(download_manifest, self.store, path))

    async def look(self, work: Callable[[ObjectStore], T]) -> T:
        """Do ``work``, which only reads, on a thread; raises as `write`."""
        return await self._readers.run(partial(work, self.store))

    async def write(self, work: Callable[[ObjectStore], T]) -> T:
        """Do ``work`` on the one thread that writes to the store, after what was begun before.

        Raises:
            TierUnavailable: the node has no store, and whatever ``work`` raises.
        """

        def answered() -> None:
            self.answered_at = self._clock.monotonic()

        store = self.store.watched(answered)

        def begun() -> T:
            answered()
            return work(store)

        return await self._writer.run(begun)

    async def stop(self) -> None:
        """Wait for what is under way, but not for a store that does not answer."""
        for transfer in self._known.transfers.values():
            transfer.task.cancel()
        await asyncio.gather(self._readers.stop(STOP_SECONDS), self._writer.stop(STOP_SECONDS))


def node_tier(config: NodeConfig, disk: Disk, clock: Clock, tasks: asyncio.TaskGroup) -> Tier:
    """Return the tier of a node, whose tasks are in ``tasks``."""
    uri = config.tier
    store = None if uri is None else ObjectStore.at(uri.get_secret_value())
    return Tier(
        store=store,
        disk=disk,
        clock=clock,
        tasks=tasks,
        held_bytes_max=config.tier_cache_bytes,
        root=config.data,
    )
