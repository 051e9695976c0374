"""Tasks that run beside the application while a block lasts: a publisher that sends, a client's tasks."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar


class SendingPublisher(Protocol):
    """A publisher that `sending` runs."""

    async def run(self) -> None:
        """Send what is published, until cancelled."""

    async def flush(self) -> None:
        """Return when all of it is acked; raise what failed."""

    def abandon(self) -> None:
        """Give up what is not acked."""


P = TypeVar("P", bound=SendingPublisher)


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Let ``work`` run while the block lasts: its failure ends the block, and is raised as it is.

    A caller that is cancelled gets that alone, also if ``work`` fails of it: otherwise it would go on.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(work)
            try:
                yield
            finally:
                task.cancel()
    except BaseExceptionGroup as group:  # callers handle errors, not groups of them: the first is the cause
        caller = asyncio.current_task()
        assert caller is not None, "a coroutine runs in a task"
        if caller.cancelling():  # a task group of Python 3.11 forgets it where there is an error, too
            raise asyncio.CancelledError from None
        raise group.exceptions[0] from None


@asynccontextmanager
async def sending(publisher: P) -> AsyncIterator[P]:
    """Let ``publisher`` send while the block lasts; flush at its end, abandon what is left after an error."""
    async with beside(publisher.run()):
        try:
            yield publisher
            await publisher.flush()
        finally:
            publisher.abandon()


class Background:
    """Tasks of a client; none of them fails, as that would be a fault of ours and end the block."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = tasks
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let ``work`` run beside everything else."""
        task = self._tasks.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def end(self) -> None:
        """Cancel all that runs."""
        for task in self._running:
            task.cancel()


@asynccontextmanager
async def background() -> AsyncIterator[Background]:
    """Let tasks run while the block lasts; they are cancelled at its end.

    An error of the block is raised as it is, once they have ended.
    """
    failed: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as tasks:
            running = Background(tasks)
            try:
                yield running
            except BaseException as error:  # noqa: BLE001 - raised below: a task group would wrap it
                failed = error
            running.end()
    except BaseExceptionGroup as group:  # a task has failed: that is the cause
        raise group.exceptions[0] from None
    if failed is not None:
        raise failed
