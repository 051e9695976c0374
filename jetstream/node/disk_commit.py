"""What is done with appends that are handed over together: written, synced, learnt, counted."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from envelope.errors import JetstreamError
from envelope.types import SyncMode
from jetstream.log.log import Log
from jetstream.log.short_commits import ShortCommits
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk_appends import AnyAppend, FollowerAppend, GroupAppend


@dataclass(slots=True)
class DiskCounters:
    """What was done since the node started; read anywhere."""

    commits: int = 0
    groups: int = 0
    records: int = 0
    failed_groups: int = 0
    write_seconds: float = 0.0
    sync_seconds: float = 0.0


class Extent(Enum):
    """How much of a commit is done."""

    NOTHING = auto()
    WRITTEN = auto()
    """`DiskCommit.finish` is still to come."""
    ALL = auto()


class DiskCommit:
    """The steps of a commit, all of them for one thread at a time (`DiskThread` says which).

    Attributes:
        counters: what was done.
        unlearnt: appends of followers that are stored, and kept in memory to be learnt.
    """

    def __init__(self, scheduler: SyncScheduler, short_commits: ShortCommits) -> None:
        self.counters = DiskCounters()
        self.unlearnt: list[FollowerAppend] = []
        self._scheduler = scheduler
        self._short_commits = short_commits

    def commit_shortly(self, appends: Sequence[AnyAppend]) -> Extent:
        """Do as much of a commit here as gains time, and takes hardly any; tell whoever awaits it written."""
        begun = time.perf_counter()
        extent = self._short_extent(appends, begun)
        if extent is not Extent.NOTHING:
            for callback in self.write(appends):
                callback()
            if extent is Extent.ALL:
                self.finish(appends)
            failed = any(append.error is not None for append in appends)
            self._short_commits.took(time.perf_counter() - begun, begun, failed=failed)
        return extent

    def _short_extent(self, appends: Sequence[AnyAppend], now: float) -> Extent:
        logs = to_sync(appends)
        is_followed = any(append.is_followed for append in appends)
        extent = Extent.WRITTEN if logs and is_followed else Extent.ALL
        sync_seconds = self._scheduler.expected_seconds(len(logs)) if extent is Extent.ALL else 0.0
        sizes = [append.size for append in appends]
        if not self._short_commits.allows(sizes, now, is_followed=is_followed, sync_seconds=sync_seconds):
            return Extent.NOTHING
        if extent is Extent.WRITTEN and any(a.written is None for a in appends if a.log in logs):
            return Extent.NOTHING  # the thread is woken for the sync in any case, and nobody has it sooner
        if len({append.log for append in appends}) < len(appends):
            return Extent.NOTHING  # what the second will be is known when the first is written
        return extent if all(append.only_writes() for append in appends) else Extent.NOTHING

    def write(self, appends: Sequence[AnyAppend]) -> list[Callable[[], None]]:
        """Write all, and return who wants to be told of it."""
        begun = time.perf_counter()
        for append in appends:
            try:
                append.write()
            except JetstreamError as error:
                append.error = error
        self.counters.write_seconds += time.perf_counter() - begun
        written = [append.written for append in appends if append.error is None]
        return [callback for callback in written if callback is not None]

    def finish(self, appends: Sequence[AnyAppend]) -> None:
        """Do the rest behind `write`; all outcomes are known then."""
        logs = to_sync(appends)
        if logs:
            self._sync(appends, logs)
        self._count(appends)
        self._learn_or_keep(appends)

    def learn(self) -> None:
        """Let followers' logs take in what was stored."""
        for append in self.unlearnt:
            append.learn()
        self.unlearnt.clear()

    def _sync(self, appends: Sequence[AnyAppend], logs: Sequence[Log]) -> None:
        begun = time.perf_counter()
        failures = self._scheduler.sync(logs)
        for append in appends:
            if append.error is None:
                append.error = failures.get(append.log)
        self.counters.sync_seconds += time.perf_counter() - begun

    def _count(self, appends: Sequence[AnyAppend]) -> None:
        self.counters.commits += 1
        for append in appends:
            if append.error is None:
                self.counters.groups += 1
                self.counters.records += append.records
            else:
                self.counters.failed_groups += 1

    def _learn_or_keep(self, appends: Sequence[AnyAppend]) -> None:
        """Let followers' logs take in what was stored if that takes no time; otherwise a little later."""
        for append in appends:
            if isinstance(append, GroupAppend) and append.stored is not None and append.error is None:
                append.stored()
            if not isinstance(append, FollowerAppend) or not append.records:
                continue
            if self.unlearnt or not append.pass_over():
                self.unlearnt.append(append)


def to_sync(appends: Sequence[AnyAppend]) -> list[Log]:
    """Return the logs in which something is to be durable before its outcome is told, each once."""
    written = (append.log for append in appends if append.error is None)
    return list(dict.fromkeys(log for log in written if log.config.sync is SyncMode.ALWAYS))
