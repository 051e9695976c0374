"""Requests of our own on a link, and their answers: on a subject of the link's, one for all of them.

nats-py can do that too, and cannot tell when the server refuses it the subscription that it makes for it.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

import nats.errors

from envelope.errors import NoResponders, UnavailableError
from jetstream.ingest.messages import MessageBlock, Unread
from jetstream.node.nats.routes import Route

_NO_RESPONDERS: Final = b"NATS/1.0 503"

Publish = Callable[[bytes, bytes, bytes, bytes], Awaitable[None]]
"""Publishes a payload on a subject, with a reply subject and a header block."""


class Requests:
    """Of one link; used on the loop's thread."""

    def __init__(self, subscribe: Callable[[Route], Awaitable[None]], publish: Publish) -> None:
        """Subscribe to nothing before the first request."""
        self._subscribe = subscribe
        self._publish = publish
        self._inbox = f"_INBOX.{secrets.token_hex(11)}"
        self._route: Route | None = None
        self._numbers = count()
        self._waiting: dict[bytes, asyncio.Future[tuple[bytes, bytes | None]]] = {}

    async def ask(self, subject: str, payload: bytes, seconds: float, header: bytes = b"") -> bytes:
        """Return the answer to a request; ``header`` is a header block, or empty.

        Raises:
            NoResponders: nobody listens there.
            UnavailableError: nobody answered in time, the connection is down, or no answer can come.
        """
        reply = f"{self._inbox}.{next(self._numbers)}".encode()
        answer = self._waiting[reply] = asyncio.get_running_loop().create_future()
        data: bytes
        try:
            async with asyncio.timeout(seconds):
                await self._listen()
                await self._publish(subject.encode(), payload, reply, header)
                data, status = await answer
        except (TimeoutError, OSError, nats.errors.Error) as error:
            raise UnavailableError(f"no answer on {subject}: {error!r}") from None
        finally:
            del self._waiting[reply]
        if not data and status is not None and status.startswith(_NO_RESPONDERS):
            raise NoResponders(f"nobody listens on {subject}")
        return data

    async def _listen(self) -> None:
        if self._route is None:
            self._route = Route(f"{self._inbox}.*", "", self._take, is_service=True)
            await self._subscribe(self._route)
        if self._route.is_refused:
            assert self._route.problem is not None, "a refusal is a problem"
            raise UnavailableError(self._route.problem.description)

    def _take(self, messages: MessageBlock) -> None:
        """Note the answers; anybody may publish here, and the rest is passed over."""
        for subject, payload, header in zip(
            messages.subjects, messages.payloads, messages.headers, strict=True
        ):
            answer = self._waiting.get(subject)
            if answer is not None and not answer.done() and not isinstance(header, Unread):
                answer.set_result((payload, header))
