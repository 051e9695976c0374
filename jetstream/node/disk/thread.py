"""The one thread that writes to a data directory: appends, syncs, everything blocking.

The thread takes all appends that are waiting, writes them, syncs the dirty logs together (`SyncScheduler`),
and returns all results in one wake-up of the loop. A stream that awaits the write of an append while its sync
still runs is notified in one more wake-up; other commits have none.

The thread waits at an eventfd, which the loop writes without the interpreter's lock. A lock that is let go of
wakes a thread that waits for the interpreter's at once: four futexes for each hand-over.

While the thread has nothing to do, a short commit is made on the loop instead, or the write of one that
followers await (`DiskCommit.commit_shortly`). Nothing of a log is ever done on both at a time.
"""

import asyncio
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from envelope.errors import JetstreamError, StorageError, StreamOffline
from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.log.inline_commits import InlineCommitPolicy
from jetstream.log.sync_scheduler import SyncScheduler
from jetstream.node.disk.appends import AnyAppend, CommitProgress, DiskCommit
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash

T = TypeVar("T")

_UNREPLAYED_MAX: Final = 64
"""Appends of followers that are kept in memory until they are replayed."""
_PAUSE_MS: Final = 1
"""After so long without a job they are replayed."""
_COUNT_BYTES: Final = 8
"""What is read from an eventfd."""


@dataclass(slots=True, eq=False)
class _Appends:
    """Appends that were handed over together.

    Attributes:
        appends: in order.
        done: called on the loop when all outcomes are known.
        is_written: whether the loop has written them; the rest is the thread's.
        failure: an error of ours on the loop, which is to be the thread's.
    """

    appends: Sequence[AnyAppend]
    done: Callable[[], None]
    is_written: bool = False
    failure: Exception | None = None


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


class DiskThread:
    """Owns the thread; every method is called on the event loop's thread.

    Attributes:
        catch_up_queue: of readers; notified of the begin and the end of appends.

    Invariant:
        N13: while the loop writes, the thread has no job and nothing to learn.
    """

    def __init__(
        self,
        scheduler: SyncScheduler,
        crash: Crash,
        name: str = "jetstream-disk",
        catch_up_queue: CatchUpQueue | None = None,
        inline_commits: InlineCommitPolicy | None = None,
    ) -> None:
        self._commit = DiskCommit(
            scheduler, InlineCommitPolicy() if inline_commits is None else inline_commits
        )
        self.counters = self._commit.counters
        self._crash = crash
        self._queue: deque[_Job] = deque()
        self._wake = os.eventfd(0)  # written behind each change of the queue
        self._waker = select.poll()
        self._waker.register(self._wake, select.POLLIN)
        self._collected: list[_Job] = []  # not in the queue yet
        self._loop = asyncio.get_running_loop()
        self.catch_up_queue = (
            CatchUpQueue(CatchUpScheduler(), SystemClock(), self._loop)
            if catch_up_queue is None
            else catch_up_queue
        )
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._under_way = 0  # jobs in the queue or taken, whose ends the loop has not heard of
        self._is_broken = False  # by an error of ours: nothing is written any more
        self._taken: list[_Job] = []  # from the queue, and not answered yet
        self._stopped = False
        self._thread.start()

    def append(self, appends: Sequence[AnyAppend], done: Callable[[], None]) -> None:
        """Append the groups, each to its log; then call ``done`` on the loop, all outcomes being known.

        Raises:
            StreamOffline: the node is stopping; nothing was handed over.
        """
        self._submit(_Appends(appends, done))
        self.catch_up_queue.appending()

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
        """Commit here what is a matter of no time, and have the thread do the rest, if there is any."""
        jobs, self._collected = self._collected, []
        groups: list[_Appends] = []
        appends: list[AnyAppend] = []
        for job in jobs:
            if isinstance(job, _Appends):
                groups.append(job)
                appends += job.appends
        progress = CommitProgress.NOTHING
        # While the thread waits for a job, what is its own may be used here.
        is_idle = not self._under_way and not self._commit.unreplayed and not self._is_broken
        if (
            is_idle
            and 0 < len(groups) == len(jobs)
            and not self.catch_up_queue.are_taken  # the loop: a reader has a turn while the disk is at work
        ):
            try:
                progress = self._commit.commit_shortly(appends)
            except Exception as error:  # noqa: BLE001 - an error of ours: the thread raises it, and refuses all
                groups[0].failure = error
        assert progress is CommitProgress.NOTHING or not self._under_way, f"N13: {self._under_way} jobs"
        if progress is CommitProgress.ALL:
            if self._commit.unreplayed:
                self._submit(_Call(_nothing, self._loop.create_future()))  # the thread replays before a call
            self._on_committed(groups, from_thread=0)
            return
        if progress is CommitProgress.WRITTEN:
            for job in groups:
                job.is_written = True
            # Behind what goes to followers now: meanwhile the thread would only wait for the interpreter.
            self._loop.call_soon(os.eventfd_write, self._wake, 1)
        self._under_way += len(jobs)
        self._queue.extend(jobs)
        if jobs and progress is CommitProgress.NOTHING:
            os.eventfd_write(self._wake, 1)

    def _on_committed(self, groups: Sequence[_Appends], from_thread: int) -> None:
        """Notify of outcomes, of which so many come ``from_thread``: all or none."""
        self._under_way -= from_thread
        for job in groups:
            job.done()
        self.catch_up_queue.appended(len(groups))

    def _resolve(self, job: _Call) -> None:
        self._under_way -= 1
        if job.future.done():
            return
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)

    async def stop(self) -> None:
        """Finish what is queued, then end the thread."""
        is_first, self._stopped = not self._stopped, True
        if is_first:
            self._collected.append(_Stop())
            self._hand_over()
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        if is_first:
            os.close(self._wake)

    # --- on the disk thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - an error of ours: the thread's supervisor stops the node
            self._is_broken = True
            self._crash.report_from_thread(error)
            self._refuse_all()

    def _serve(self) -> None:
        stop = False
        while not stop:
            if self._commit.unreplayed:
                self._replay_if_quiet()
            self._taken = self._next_jobs()
            groups: list[_Appends] = []
            others: list[_Job] = []
            for job in self._taken:
                if isinstance(job, _Appends):
                    groups.append(job)
                else:
                    others.append(job)
            if groups:
                self._write_and_finish(groups)
                # The loop reads the outcomes from now on: whatever happens next must not change them.
                self._taken = others
                self._loop.call_soon_threadsafe(self._on_committed, groups, len(groups))
            if others:
                stop = self._serve_calls(others)

    def _serve_calls(self, jobs: Sequence[_Job]) -> bool:
        """Do what is no append; return whether the last job of all was among it."""
        self._commit.replay()  # they may be about what the log holds
        stop = False
        for job in jobs:
            if isinstance(job, _Call):
                self._perform(job)
                self._taken = [other for other in self._taken if other is not job]
                self._loop.call_soon_threadsafe(self._resolve, job)
            stop = stop or isinstance(job, _Stop)
        return stop

    def _replay_if_quiet(self) -> None:
        """Replay stored batches, once no job has come for a moment, or there are too many."""
        if len(self._commit.unreplayed) >= _UNREPLAYED_MAX or not self._waker.poll(_PAUSE_MS):
            self._commit.replay()

    def _next_jobs(self) -> list[_Job]:
        """Return what is in the queue; wait until something has come, which may have been taken before."""
        os.read(self._wake, _COUNT_BYTES)  # `os.eventfd_read` would raise if a signal came
        jobs: list[_Job] = []
        while self._queue:
            jobs.append(self._queue.popleft())
        return jobs

    def _refuse_all(self) -> None:
        """After an error of ours: answer everything with a failure, so that the node can be stopped.

        Jobs taken and not answered when it happened are answered too: nobody knows how far they came.
        """
        error = StorageError("the disk thread has stopped after an internal error")
        stop = self._refuse(self._taken, error)
        while not stop:
            stop = self._refuse(self._next_jobs(), error)

    def _refuse(self, jobs: Sequence[_Job], error: StorageError) -> bool:
        """Fail ``jobs``; return whether the last job of all was among them."""
        for job in jobs:
            if isinstance(job, _Appends):
                for append in job.appends:
                    append.error = error
                self._loop.call_soon_threadsafe(self._on_committed, [job], 1)
            elif isinstance(job, _Call):
                job.error = error
                self._loop.call_soon_threadsafe(self._resolve, job)
        return any(isinstance(job, _Stop) for job in jobs)

    def _write_and_finish(self, groups: Sequence[_Appends]) -> None:
        appends: list[AnyAppend] = []
        unwritten: list[AnyAppend] = []
        for job in groups:
            if job.failure is not None:
                raise job.failure
            appends += job.appends
            if not job.is_written:
                unwritten += job.appends
        if unwritten:
            callbacks = self._commit.write(unwritten)
            if callbacks:
                self._loop.call_soon_threadsafe(_call_each, callbacks)
        self._commit.finish(appends)

    def _perform(self, job: _Call) -> None:
        try:
            job.result = job.work()
        except (JetstreamError, OSError) as error:
            job.error = error


def _call_each(callbacks: Sequence[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _nothing() -> None:
    """Do nothing."""
