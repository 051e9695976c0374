"""Threads for calls that may never return: neither a stop nor the end of the process waits for them.

The interpreter joins the threads of a `ThreadPoolExecutor` when it ends, however long that takes.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class DaemonThreads:
    """Do what they are given, first come, first served; made and used on the loop."""

    def __init__(self, name: str, count: int) -> None:
        """Start ``count`` threads called ``name``."""
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], None]] | None] = SimpleQueue()
        self._ended: list[Future[None]] = []
        self._waiting: set[asyncio.Future[Any]] = set()
        for _ in range(count):
            ended: Future[None] = Future()
            ended.set_running_or_notify_cancel()
            threading.Thread(target=self._turn, args=(ended,), name=name, daemon=True).start()
            self._ended.append(ended)

    def _turn(self, ended: "Future[None]") -> None:
        while (given := self._work.get()) is not None:
            future, work = given
            if future.set_running_or_notify_cancel():
                work()
        ended.set_result(None)

    async def run(self, work: Callable[[], T]) -> T:
        """Do ``work`` on one of the threads, and return or raise what it does.

        A caller that is cancelled does not stop work that has begun; what has not begun is left undone. A
        caller that still waits when `stop` gives up is cancelled.
        """
        future: Future[T] = Future()

        def done() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                future.set_exception(error)
            else:
                future.set_result(result)

        self._work.put((future, done))
        waiting = asyncio.wrap_future(future)
        self._waiting.add(waiting)
        try:
            return await waiting
        finally:
            self._waiting.discard(waiting)

    async def stop(self, seconds: float) -> None:
        """Give up what has not begun, and after ``seconds`` what is not done; nothing is to come after it."""
        try:
            while (given := self._work.get_nowait()) is not None:
                given[0].cancel()
        except Empty:
            pass
        for _ in self._ended:
            self._work.put(None)
        await asyncio.wait([asyncio.wrap_future(ended) for ended in self._ended], timeout=seconds)
        for waiting in self._waiting:
            waiting.cancel()
