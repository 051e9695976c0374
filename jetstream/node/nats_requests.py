"""Requests of our own on a link, and their answers: on a subject of the link's, one for all of them.

nats-py can do that too, and cannot tell when the server refuses it the subscription that it makes for it.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from envelope.errors import NoResponders, UnavailableError
from jetstream.node.nats_routes import Route

_NO_RESPONDERS: Final = "503"

Publish = Callable[[str, bytes, str], Awaitable[None]]


class Requests:
    """Of one link; used on the loop's thread."""

    def __init__(self, subscribe: Callable[[Route], Awaitable[None]], publish: Publish) -> None:
        """Subscribe to nothing before the first request."""
        self._subscribe = subscribe
        self._publish = publish
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._route: Route | None = None
        self._numbers = count()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}

    async def ask(self, subject: str, payload: bytes, seconds: float) -> bytes:
        """Return the answer to a request.

        Raises:
            NoResponders: nobody listens there.
            UnavailableError: nobody answered in time, the connection is down, or no answer can come.
        """
        reply = f"{self._inbox}.{next(self._numbers)}"
        answer = self._waiting[reply] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._listen()
                await self._publish(subject, payload, reply)
                message = await answer
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise UnavailableError(f"no answer on {subject}: {error!r}") from None
        finally:
            del self._waiting[reply]
        if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
            raise NoResponders(f"nobody listens on {subject}")
        data: bytes = message.data
        return data

    async def _listen(self) -> None:
        if self._route is None:
            self._route = Route(f"{self._inbox}.*", "", respond=self._take)
            await self._subscribe(self._route)
        if self._route.is_refused:
            assert self._route.problem is not None, "a refusal is a problem"
            raise UnavailableError(self._route.problem.description)

    async def _take(self, message: Msg) -> None:
        answer = self._waiting.get(message.subject)
        if answer is not None and not answer.done():
            answer.set_result(message)
