"""A thread for long work on cold data, which rests for as long as it works.

So it takes at most half of a core, and half of what the disk can do.
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

    def __init__(self, name: str) -> None:
        self.worked_bytes = 0
        self._stopped = False
        self._rested_at = time.perf_counter()
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    async def work(self, work: Callable[[], T]) -> T:
        """Do ``work``, which calls `pace` now and then, on the thread."""

        def timed() -> T:
            self._rested_at = time.perf_counter()
            return work()

        return await self._loop.run_in_executor(self._executor, timed)

    def pace(self, size: int) -> None:
        """Rest for as long as the chunk of ``size`` bytes took; called on the thread.

        Raises:
            StreamOffline: the node is stopping.
        """
        if self._stopped:
            raise StreamOffline("the node is stopping")
        self.worked_bytes += size
        time.sleep(time.perf_counter() - self._rested_at)
        self._rested_at = time.perf_counter()

    async def stop(self) -> None:
        """Return when the thread has ended, at its next chunk."""
        self._stopped = True
        await self._loop.run_in_executor(None, self._executor.shutdown)
