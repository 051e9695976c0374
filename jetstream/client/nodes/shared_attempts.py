"""Attempts that all who want the same share: the first makes it, the others wait for its outcome."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from envelope.errors import JetstreamError, UnavailableError

Key = TypeVar("Key", bound=Hashable)
Outcome = TypeVar("Outcome")


class SharedAttempts(Generic[Key, Outcome]):
    """Of one kind; used on one loop's thread."""

    def __init__(self) -> None:
        self._under_way: dict[Key, asyncio.Future[Outcome]] = {}

    async def outcome(self, key: Key, attempt: Callable[[], Awaitable[Outcome]]) -> Outcome:
        """Return what ``attempt`` returns, or that of the one under way for the same key.

        Raises:
            UnavailableError: whoever was making it was cancelled.
            JetstreamError: what the attempt raises.
        """
        under_way = self._under_way.get(key)
        if under_way is not None:
            return await asyncio.shield(under_way)
        under_way = self._under_way[key] = asyncio.get_running_loop().create_future()
        failure: JetstreamError | None = UnavailableError("whoever was trying gave up")
        try:
            outcome = await attempt()
            failure = None
        except JetstreamError as error:
            failure = error
            raise
        finally:
            del self._under_way[key]
            if failure is not None:
                under_way.set_exception(failure)
                under_way.exception()  # seen: perhaps nobody shares it
        under_way.set_result(outcome)
        return outcome
