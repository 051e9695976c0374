"""At most one process works: the owner of the only partition of a consumer group."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from envelope.group_errors import MemberFenced
from jetstream.client.connection import JetstreamClient
from jetstream.client.consume.consumer import Consumer
from jetstream.client.nodes.background import beside

_COMMIT_INTERVAL_S: Final = 5.0
_SESSION_TIMEOUT_S: Final = 5.0
"""After which another instance takes over from one that was killed."""


class SoleInstance:
    """A member of a group that consumes a stream, and hands no record out: who owns the stream may work.

    A process that stood still for longer than the group's session may still believe that it is the owner:
    what it does has to be fenced by itself.
    """

    def __init__(self, client: JetstreamClient, stream: str, group: str) -> None:
        """Nothing is asked before the block of `owned`."""
        self._stream = stream
        self._is_owner = asyncio.Event()
        self._is_leaving = False
        self._consumer: Consumer = client.consume(
            stream,
            group=group,
            commit="manual",
            prefetch_bytes=1,
            session_timeout_s=_SESSION_TIMEOUT_S,
            on_assigned=self._assigned,
            on_revoked=self._taken_away,
            on_lost=self._taken_away,
        )

    @asynccontextmanager
    async def owned(self, reached: Callable[[], int]) -> AsyncIterator[None]:
        """Wait until this is the only instance; it is for as long as the block lasts.

        Args:
            reached: returns how far the work is, the next offset: it is the group's cursor, now and then and
                at the end, so that others see how far it is behind.

        Raises:
            MemberFenced: another one has taken over; the block is cancelled.
            JetstreamError: the group cannot be joined, or its cursor not be stored.
        """
        async with self._consumer:
            try:
                async with beside(self._watch()):
                    await self._is_owner.wait()
                    async with beside(self._commit(reached)):
                        yield
                    await self._consumer.commit({self._stream: reached()})
            finally:
                self._is_leaving = True

    async def _watch(self) -> None:
        await self._consumer.deliver()  # paused: it only raises why the membership has ended

    async def _commit(self, reached: Callable[[], int]) -> None:
        stored: int | None = None
        while True:
            await asyncio.sleep(_COMMIT_INTERVAL_S)
            if (now := reached()) != stored:
                await self._consumer.commit({self._stream: now})
                stored = now

    def _assigned(self, _: list[str]) -> None:
        self._consumer.pause((self._stream,))
        self._is_owner.set()

    def _taken_away(self, _: list[str]) -> None:
        if not self._is_leaving:
            raise MemberFenced(
                f"another process has taken over as the only member of {self._consumer.group!r}"
            )
