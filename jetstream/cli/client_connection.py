"""A connected client for one command."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Final
from urllib.parse import urlsplit

import jetstream
from envelope.errors import InvalidConfig, JetstreamError, Unauthorized, UnavailableError
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.client.connection import JetstreamClient

CONNECT_SECONDS_MAX: Final = 5.0
"""A command does not wait for a server that is away: it says so."""


class _Attempt:
    """An attempt at connecting that ends when every server has failed once.

    nats-py would log each failure with a traceback and go on for minutes. Once the connection stands it may:
    it then reconnects by itself, and whoever waits has a timeout of its own.
    """

    def __init__(self, servers: int) -> None:
        self.failures: list[Exception] = []
        self._servers = servers
        self._limit: asyncio.Timeout | None = None

    @contextmanager
    def limited_by(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Let the block, which connects, end by ``limit``."""
        self._limit = limit
        try:
            yield
        finally:
            self._limit = None

    async def on_error(self, error: Exception) -> None:
        if self._limit is None:
            return
        self.failures.append(error)
        if len(self.failures) >= self._servers:
            self._limit.reschedule(asyncio.get_running_loop().time())


@asynccontextmanager
async def connected(
    options: NatsOptions, socket: SocketOptions | None = None
) -> AsyncIterator[JetstreamClient]:
    """Connect as the options say; closed when the block ends. ``socket`` is for commands that read.

    Raises:
        UnavailableError: no server answers.
        InvalidConfig: a key or a file is not what it should be.
        Unauthorized: the server does not let us in.
    """
    servers = options.urls
    arguments = {**options.connect_arguments(), **(socket or SocketOptions()).connect_arguments()}
    attempt = _Attempt(len(servers))
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX) as limit:
                with attempt.limited_by(limit):
                    connecting = jetstream.connect(*servers, **arguments, error_cb=attempt.on_error)
                    client = await stack.enter_async_context(connecting)
        except InvalidConfig:
            raise
        except Unauthorized as error:
            raise _refusal(servers, error) from None
        except (TimeoutError, JetstreamError) as error:
            raise _refusal(servers, attempt.failures[-1] if attempt.failures else error) from None
        yield client


def _refusal(urls: Sequence[str], reason: Exception) -> JetstreamError:
    """Return an error that names the servers and the reason, without the secrets in a URL."""
    servers = ", ".join(without_secrets(url) for url in urls)
    if isinstance(reason, Unauthorized):
        return Unauthorized(f"the NATS server at {servers} does not let us in: check the credentials")
    if isinstance(reason, TimeoutError):
        return UnavailableError(f"no NATS server answers at {servers}")
    return UnavailableError(f"no NATS server at {servers}: {reason}")


def without_secrets(url: str) -> str:
    """Return the URL without user, password or token."""
    parts = urlsplit(url if "://" in url else f"nats://{url}")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
