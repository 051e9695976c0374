"""A publisher that sends in a task of its own, for as long as its block lasts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar


class SendingPublisher(Protocol):
    """What `sending` runs."""

    async def run(self) -> None:
        """Send what is published, until cancelled."""

    async def flush(self) -> None:
        """Return when all of it is acked; raise what failed."""

    def abandon(self) -> None:
        """Give up what is not acked."""


P = TypeVar("P", bound=SendingPublisher)


@asynccontextmanager
async def sending(publisher: P) -> AsyncIterator[P]:
    """Let ``publisher`` send while the block lasts; flush at its end, abandon what is left after an error."""
    try:
        async with asyncio.TaskGroup() as tasks:
            sender = tasks.create_task(publisher.run())
            try:
                yield publisher
                await publisher.flush()
            finally:
                sender.cancel()
                publisher.abandon()
    except BaseExceptionGroup as group:  # callers handle errors, not groups of them: the first is the cause
        raise group.exceptions[0] from None
