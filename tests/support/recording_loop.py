"""An event loop whose timers a test can wait for."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

from tests.support.metadata_members import WAIT_SECONDS

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class RecordingLoop(asyncio.SelectorEventLoop):
    """The loop of the standard library; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._awaited: list[tuple[float, float, asyncio.Future[None]]] = []

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        for shortest, longest, is_set in self._awaited:
            if shortest < when - self.time() < longest and not is_set.done():
                is_set.set_result(None)
        return super().call_at(when, callback, *args, context=context)

    async def until_set(self, shortest: float, longest: float) -> None:
        """Wait until a timer is set for a time between these, in seconds."""
        async with asyncio.timeout(WAIT_SECONDS):
            awaited = (shortest, longest, self.create_future())
            self._awaited.append(awaited)
            await awaited[2]


async def until_set(shortest: float, longest: float) -> None:
    """See `RecordingLoop.until_set`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, RecordingLoop), "see `run_recorded`"
    await loop.until_set(shortest, longest)


def run_recorded(test: Coroutine[Any, Any, T]) -> T:
    """Run a test on such a loop."""
    with asyncio.Runner(loop_factory=RecordingLoop) as runner:
        return runner.run(test)
