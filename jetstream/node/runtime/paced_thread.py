"""A thread for long work, which rests between its chunks.

One that works on cold data rests for as long as it works: so it takes at most half of a core, and half of
what the disk can do.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from envelope.errors import StreamOffline

T = TypeVar("T")


class PacedThread:
    """Does one piece of work after the other; made on the loop.

    Attributes:
        worked_bytes: of all that was worked through.
    """

    def __init__(self, name: str, rest_s: Callable[[float], float] | None = None) -> None:
        """``rest_s`` returns the rest after seconds of the processor; None: as long as a chunk took."""
        self.worked_bytes = 0
        self._rest_s = rest_s or (lambda worked_s: worked_s)
        self._seconds = time.perf_counter if rest_s is None else time.thread_time
        self._stopped = False
        self._rested_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def work(self, work: Callable[[], T]) -> T:
        """Do ``work``, which calls `pace` now and then, on the thread."""
        return await self.begin(work)

    def begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Return the future of ``work``, which the thread does as soon as it has done all before it."""

        def timed() -> T:
            self._rested_at = self._seconds()
            return work()

        return self._loop.run_in_executor(self._executor, timed)

    def pace(self, size: int) -> None:
        """Rest after a chunk of ``size`` bytes; called on the thread.

        Raises:
            StreamOffline: the node is stopping.
        """
        if self._stopped:
            raise StreamOffline("the node is stopping")
        self.worked_bytes += size
        rest_s = self._rest_s(self._seconds() - self._rested_at)
        if rest_s:
            time.sleep(rest_s)
        self._rested_at = self._seconds()

    async def stop(self) -> None:
        """Return when the thread has ended, at its next chunk."""
        self._stopped = True
        await self._loop.run_in_executor(None, self._executor.shutdown)
