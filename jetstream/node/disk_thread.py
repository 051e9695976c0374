"""The one thread that writes to a data directory: appends, syncs, everything blocking.

The thread takes all appends that are waiting, writes them, syncs the dirty logs together (`SyncScheduler`),
and returns all results in one wake-up of the loop. Who wants to know that an append is written while its sync
still runs is told in one wake-up more; a commit that nobody asks that of has none.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from envelope.errors import DiskFull, JetstreamError, StorageError, StreamOffline
from envelope.types import NO_OFFSET, Offset, SyncMode, TimestampUs
from jetstream.fetch.turns import Turns
from jetstream.log.batch import Buffer, SealedBatch, UnsealedBatch, verified_batches
from jetstream.log.log import Log
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.clock import SystemClock
from jetstream.node.crash import Crash
from jetstream.node.log_note import decode_note
from jetstream.node.recovery import OpenedLog
from jetstream.node.turn_queue import TurnQueue

_log = logging.getLogger(__name__)
T = TypeVar("T")

_UNLEARNT_MAX: Final = 64
"""Appends of followers that are kept in memory to be learnt."""
_PAUSE_SECONDS: Final = 0.001
"""So long without a job is time to learn."""


@dataclass(slots=True, eq=False)
class GroupAppend:
    """One stream's group on its way to the disk.

    Attributes:
        log: where to.
        batches: to be appended all or none and, where the log's mode is ``always``, synced.
        now: wall clock.
        error: the outcome, once there is one: None if the batches are as durable as the mode promises,
            `DiskFull` if they were undone, `StreamOffline` if the log had failed before and nothing was
            tried, any other error if the outcome is unknown and the log has failed for good.
        written: called on the loop once the batches are written, before they are synced; not if they are
            refused.
        stored: called on the disk thread when the outcome is that the batches are stored.
    """

    log: Log
    batches: Sequence[UnsealedBatch]
    now: TimestampUs
    error: JetstreamError | None = None
    written: Callable[[], None] | None = None
    stored: Callable[[], None] | None = None

    @property
    def base(self) -> Offset:
        """Offset of the first record."""
        return self.batches[0].base

    @property
    def end(self) -> Offset:
        """Offset after the last record."""
        return self.batches[-1].next

    @property
    def records(self) -> int:
        """How many records it has."""
        return self.end - self.base

    def write(self) -> None:
        """Write to the log; on the disk thread."""
        if self.base != self.log.log_end_offset:
            raise _refused_behind(self.log)
        self.log.append_group(self.batches, self.now)


@dataclass(slots=True, eq=False)
class FollowerAppend:
    """A leader's batches on their way to a follower's disk.

    Attributes:
        opened: the log; it takes in what it has learnt once the outcome is told.
        data: whole batches, as `verified_batches` takes them.
        now: wall clock.
        high_watermark: below it nothing will be cut.
        error: as `GroupAppend.error`, and `CorruptDataError` if the batches are damaged or do not follow the
            log; nothing was stored then. With `DiskFull` the log may have the first of the batches.
        note: the leader's, of committed records of which some may be gone; empty if there is none.
        written: as `GroupAppend.written`.
        batches: what is in ``data``, once it is verified; not all of them are stored where ``error`` says so.
        records: how many were written.
    """

    opened: OpenedLog
    data: Buffer
    now: TimestampUs
    high_watermark: Offset = NO_OFFSET
    note: bytes = b""
    error: JetstreamError | None = None
    written: Callable[[], None] | None = None
    batches: Sequence[SealedBatch] = ()
    records: int = 0

    @property
    def log(self) -> Log:
        """Where to."""
        return self.opened.log

    def write(self) -> None:
        """Write to the log; on the disk thread."""
        log_end_offset = self.log.log_end_offset
        self.batches = verified_batches(self.data)
        if self.batches and self.batches[0][0].base > log_end_offset:
            raise _refused_behind(self.log)
        self.opened.history.committed(self.high_watermark)
        if self.note:
            self.opened.take_note(decode_note(self.note))
        try:
            self.log.append_sealed(self.batches, self.now)
        finally:
            self.records = self.log.log_end_offset - log_end_offset


AnyAppend = GroupAppend | FollowerAppend


def _refused_behind(log: Log) -> JetstreamError:
    """Return why nothing is appended behind what is not there."""
    return log.failed or DiskFull("the group before this one was refused")


@dataclass(slots=True, eq=False)
class _Appends:
    """What was handed over together."""

    appends: Sequence[AnyAppend]
    done: Callable[[], None]


@dataclass(slots=True, eq=False)
class _Call:
    """Any other blocking work that must not run beside the appends."""

    work: Callable[[], Any]
    future: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class _Stop:
    """The last job."""


_Job = _Appends | _Call | _Stop


@dataclass(slots=True)
class DiskCounters:
    """What the thread has done since it started; written on it, read anywhere."""

    commits: int = 0
    groups: int = 0
    records: int = 0
    failed_groups: int = 0
    write_seconds: float = 0.0
    sync_seconds: float = 0.0


class DiskThread:
    """Owns the thread; every method is called on the event loop's thread.

    Attributes:
        turns: of readers; they learn when it appends, and when that is done.
    """

    def __init__(
        self,
        scheduler: SyncScheduler,
        crash: Crash,
        name: str = "jetstream-disk",
        turns: TurnQueue | None = None,
    ) -> None:
        self.counters = DiskCounters()
        self._scheduler = scheduler
        self._crash = crash
        self._queue: SimpleQueue[_Job] = SimpleQueue()
        self._collected: list[_Job] = []  # not in the queue yet
        self._loop = asyncio.get_running_loop()
        self.turns = TurnQueue(Turns(), SystemClock(), self._loop) if turns is None else turns
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._taken: list[_Job] = []  # from the queue, and not answered yet
        self._unlearnt: list[FollowerAppend] = []
        self._stopped = False
        self._thread.start()

    def append(self, appends: Sequence[AnyAppend], done: Callable[[], None]) -> None:
        """Append the groups, each to its log; then call ``done`` on the loop, all outcomes being known.

        Raises:
            StreamOffline: the node is stopping; nothing was handed over.
        """
        self._submit(_Appends(appends, done))
        self.turns.appending()

    def call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Run ``work`` between two groups; its exception becomes the future's."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._submit(_Call(work, future))
        return future

    def _submit(self, job: _Appends | _Call) -> None:
        if self._stopped:
            raise StreamOffline("the node is stopping")
        if not self._collected:
            # When the loop has done what it does now: before, the thread would wake up only to wait for it.
            self._loop.call_soon(self._hand_over)
        self._collected.append(job)

    def _hand_over(self) -> None:
        jobs, self._collected = self._collected, []
        for job in jobs:
            self._queue.put(job)

    def _tell(self, groups: Sequence[_Appends]) -> None:
        for job in groups:
            job.done()
        self.turns.appended(len(groups))

    async def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        self._stopped = True
        self._collected.append(_Stop())
        self._hand_over()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    # --- on the disk thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - an error of ours: the thread's supervisor stops the node
            self._crash.report_from_thread(error)
            self._refuse_all()

    def _serve(self) -> None:
        stop = False
        while not stop:
            self._taken = [self._next_job()]
            while not self._queue.empty():
                self._taken.append(self._queue.get())
            groups = [job for job in self._taken if isinstance(job, _Appends)]
            calls = [job for job in self._taken if isinstance(job, _Call)]
            stop = any(isinstance(job, _Stop) for job in self._taken)
            if groups:
                appends = [append for job in groups for append in job.appends]
                self._commit(appends)
                self._learn_or_keep(appends)
                # The loop reads the outcomes from now on: whatever happens next must not change them.
                self._taken = [job for job in self._taken if not isinstance(job, _Appends)]
                self._loop.call_soon_threadsafe(self._tell, groups)
            if calls or stop:
                self._learn()  # they may be about what the log holds
            for call in calls:
                self._perform(call)
                self._taken.remove(call)
                self._loop.call_soon_threadsafe(_resolve_call, call)

    def _next_job(self) -> _Job:
        """Return the next job; what was stored is learnt when nobody waits."""
        if 0 < len(self._unlearnt) < _UNLEARNT_MAX:
            with suppress(Empty):
                return self._queue.get(timeout=_PAUSE_SECONDS)
        self._learn()
        return self._queue.get()

    def _learn_or_keep(self, appends: Sequence[AnyAppend]) -> None:
        """Let followers' logs take in what was stored if that takes no time; otherwise a little later."""
        for append in appends:
            if isinstance(append, GroupAppend) and append.stored is not None and append.error is None:
                append.stored()
            if not isinstance(append, FollowerAppend) or not append.records:
                continue
            if self._unlearnt or not append.opened.pass_over(append.batches):
                self._unlearnt.append(append)

    def _learn(self) -> None:
        """Let followers' logs take in what was stored."""
        for append in self._unlearnt:
            append.opened.absorb(append.batches)
        self._unlearnt.clear()

    def _refuse_all(self) -> None:
        """After an error of ours: answer everything with a failure, so that whoever stops the node can.

        What was taken and not answered when it happened is answered too: nobody knows how far it came.
        """
        error = StorageError("the disk thread has stopped after an internal error")
        stop = self._refuse(self._taken, error)
        while not stop:
            stop = self._refuse([self._queue.get()], error)

    def _refuse(self, jobs: Sequence[_Job], error: StorageError) -> bool:
        """Fail ``jobs``; return whether the last job of all was among them."""
        for job in jobs:
            if isinstance(job, _Appends):
                for append in job.appends:
                    append.error = error
                self._loop.call_soon_threadsafe(self._tell, [job])
            elif isinstance(job, _Call):
                job.error = error
                self._loop.call_soon_threadsafe(_resolve_call, job)
        return any(isinstance(job, _Stop) for job in jobs)

    def _commit(self, appends: Sequence[AnyAppend]) -> None:
        begun = time.perf_counter()
        for append in appends:
            self._write(append)
        written = [append for append in appends if append.error is None]
        to_sync = {append.log: None for append in written if append.log.config.sync is SyncMode.ALWAYS}
        callbacks = [append.written for append in written if append.written is not None]
        wrote = time.perf_counter()
        if callbacks:
            self._loop.call_soon_threadsafe(_call_each, callbacks)
        if to_sync:
            failures = self._scheduler.sync(list(to_sync))
            for append in written:
                append.error = failures.get(append.log)
        self._count(appends, wrote - begun, time.perf_counter() - wrote)

    def _write(self, append: AnyAppend) -> None:
        try:
            append.write()
        except JetstreamError as error:
            append.error = error

    def _count(self, appends: Sequence[AnyAppend], write_seconds: float, sync_seconds: float) -> None:
        counters = self.counters
        counters.commits += 1
        for append in appends:
            if append.error is None:
                counters.groups += 1
                counters.records += append.records
            else:
                counters.failed_groups += 1
        counters.write_seconds += write_seconds
        counters.sync_seconds += sync_seconds

    def _perform(self, job: _Call) -> None:
        try:
            job.result = job.work()
        except (JetstreamError, OSError) as error:
            job.error = error


def _call_each(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _resolve_call(job: _Call) -> None:
    if job.future.done():
        return
    if job.error is not None:
        job.future.set_exception(job.error)
    else:
        job.future.set_result(job.result)
