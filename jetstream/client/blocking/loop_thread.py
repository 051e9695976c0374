"""An event loop in a thread of its own, for callers without one, and progress on its way out of it."""

import asyncio
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from envelope.errors import ConnectionLost, RequestError
from jetstream.client.read.read_progress import ReadProgress, ReadProgressTold

T = TypeVar("T")


class Relay(Protocol):
    """Carries calls from the loop's thread to a caller's thread that waits."""

    def serve_until_done(self, future: Future[Any]) -> None:
        """Make the relayed calls in the calling thread until ``future`` is done."""


class LoopThread:
    """An event loop in a daemon thread; closed once, by its owner.

    Any thread may run a coroutine on it, also while another thread closes it: every wait has an end.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._turn, name="jetstream-client", daemon=True)
        self._admission = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Schedule a coroutine on the loop; return the future of its result.

        Raises:
            RequestError: the client is closed, or another process's; nothing was done.
        """
        self._refuse_after_fork(coroutine)
        with self._admission:
            if self._closed:
                coroutine.close()
                raise RequestError("this client is closed")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T], relay: Relay | None = None) -> T:
        """Return the coroutine's result; it is cancelled if the wait is interrupted (Ctrl-C).

        The calls that come through ``relay`` meanwhile are made in this thread, the caller's.

        Raises:
            RequestError: the client is closed, or another process's; nothing was done.
            ConnectionLost: it was closed meanwhile.
        """
        assert threading.current_thread() is not self._thread, "the loop's thread cannot wait for itself"
        self._refuse_after_fork(coroutine)
        future: Future[T] | None = None
        try:
            # Not by `begin`: after an interrupt on the way back from there nothing would cancel it.
            with self._admission:
                if self._closed:
                    coroutine.close()
                    raise RequestError("this client is closed")
                future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            if relay is not None:
                relay.serve_until_done(future)
            return future.result()
        except CancelledError:
            if not self._closed:
                raise
            raise ConnectionLost("the client was closed meanwhile: the outcome is unknown") from None
        finally:
            if future is not None:
                future.cancel()  # one that is done takes no notice

    def close(self, farewell: Coroutine[Any, Any, None] | None) -> None:
        """Refuse further calls, run ``farewell``, cancel the calls under way, and end the thread.

        If the wait for all that is interrupted, it goes on by itself. A client that is still open when the
        interpreter ends needs no wait: its thread runs no more. After a fork it is the parent's alone.
        """
        if sys.is_finalizing() or os.getpid() != self._process:
            if farewell is not None:
                farewell.close()
            return
        with self._admission:
            self._closed = True
            future = asyncio.run_coroutine_threadsafe(_wind_up(farewell), self._loop)
        future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        self._thread.join()
        future.result()

    def _refuse_after_fork(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Raise where the wait would be for ever: a fork has the memory of the thread, and not the thread."""
        if os.getpid() != self._process:
            coroutine.close()
            raise RequestError(
                f"this client is process {self._process}'s: after a fork, connect anew in the child"
            )

    def _turn(self) -> None:
        self._loop.run_forever()
        self._loop.close()


class ProgressRelay:
    """A reader's progress on its way from the loop's thread to the caller's."""

    def __init__(self, listener: ReadProgressTold) -> None:
        self._listener = listener
        self._waiting: SimpleQueue[ReadProgress | Future[Any]] = SimpleQueue()

    def put(self, progress: ReadProgress) -> None:
        """Queue a progress for the caller's thread; called by the loop's thread."""
        self._waiting.put(progress)

    def serve_until_done(self, future: Future[Any]) -> None:
        """Call the listener with each queued progress until ``future`` is done, in the calling thread."""
        future.add_done_callback(self._waiting.put)
        while (come := self._waiting.get()) is not future:
            if isinstance(come, ReadProgress):  # and no future of a wait that was interrupted
                self._listener(come)


@dataclass(frozen=True, slots=True)
class _Call:
    """A call for which the loop's thread waits."""

    function: Callable[[list[str]], object]
    argument: list[str]
    loop: asyncio.AbstractEventLoop
    heard: asyncio.Future[None]

    def make(self) -> None:
        error: Exception | None = ConnectionLost("the call was interrupted")
        try:
            self.function(self.argument)
            error = None
        except Exception as raised:  # noqa: BLE001 - the application's own, raised where it asks for records
            error = raised
        finally:
            self.loop.call_soon_threadsafe(self._resolve, error)

    def _resolve(self, error: Exception | None) -> None:
        if self.heard.done():
            return  # nobody waits any more
        if error is None:
            self.heard.set_result(None)
        else:
            self.heard.set_exception(error)


class CallRelay:
    """The application's functions, which are called by the loop's thread and run in one that waits for it."""

    def __init__(self) -> None:
        self._calls: deque[_Call] = deque()
        self._waiters: deque[SimpleQueue[Future[Any] | None]] = deque()
        """Of each thread that waits: the future that it waits for, or None if there are calls."""

    def relayed(
        self, function: Callable[[list[str]], object]
    ) -> Callable[[list[str]], Coroutine[Any, Any, None]]:
        """Return what calls ``function`` in the caller's thread, once that waits, and waits for it.

        Raises:
            TypeError: it is a coroutine, for which the caller's thread has no loop.
        """
        if inspect.iscoroutinefunction(function):
            raise TypeError(f"{function} is a coroutine: nobody would await it here")

        async def call(argument: list[str]) -> None:
            loop = asyncio.get_running_loop()
            heard: asyncio.Future[None] = loop.create_future()
            self._calls.append(_Call(function, argument, loop, heard))
            for waiter in tuple(self._waiters):
                waiter.put(None)
            await heard

        return call

    def serve_until_done(self, future: Future[Any]) -> None:
        """Make the calls that come until ``future`` is done, in the thread that calls this."""
        waiter: SimpleQueue[Future[Any] | None] = SimpleQueue()
        self._waiters.append(waiter)
        try:
            waiter.put(None)  # for the calls that wait already
            future.add_done_callback(waiter.put)
            while waiter.get() is not future:
                self._make_calls()
        finally:
            self._waiters.remove(waiter)

    def _make_calls(self) -> None:
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # another thread was first
                return
            call.make()


async def _wind_up(farewell: Coroutine[Any, Any, None] | None) -> None:
    try:
        if farewell is not None:
            await farewell
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
