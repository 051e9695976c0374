"""The client's connection to NATS."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client as NatsClient
from nats.aio.client import Srv as Server
from nkeys import NkeysError  # type: ignore[import-untyped]  # nats-py's extra has no types

from envelope.errors import ConnectionLost, InvalidConfig, Unauthorized
from envelope.urls import shown_url, user_in
from jetstream.client.nodes.nats_seam import RunParser, is_cancelled

_IDENTITIES: Final = {"user", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str", "user_jwt_cb"}
"""Options of nats-py that say who the client is; without one of them a URL may."""


_VIOLATION: Final = "Authorization Violation"
"""What a server says to wrong credentials, before it closes the connection."""


async def connect_nats(servers: Sequence[str], options: dict[str, Any], timeout_s: float) -> NatsClient:
    """Connect within ``timeout_s``, and again for as long as it takes whenever the connection is lost.

    nats-py alone would try for minutes at first, and later close the client for good after two.

    Raises:
        ConnectionLost: no server can be reached.
        Unauthorized: a server refuses the credentials; no other one is tried.
        InvalidConfig: an nkey is none.
    """
    client = NatsClient()
    RunParser.install(client)
    _survive_complaints(client)
    options.setdefault("max_reconnect_attempts", -1)
    if not _IDENTITIES & options.keys():
        options |= user_in(servers)
    try:
        async with asyncio.timeout(timeout_s):
            with _heeding_refusals(client):
                await client.connect(list(servers), **options)
    except TimeoutError:
        await client.close()
        raise ConnectionLost(
            f"NATS: {client.last_error or 'no answer'} at {', '.join(map(shown_url, servers))}"
        ) from None
    except (asyncio.CancelledError, Unauthorized):
        await client.close()
        raise
    except (nats.errors.Error, NkeysError, OSError) as error:
        with suppress(AssertionError):  # nats-py's, about a client that has not tried to connect
            await client.close()
        if isinstance(error, NkeysError):
            raise InvalidConfig(f"NATS: the key is none: {error}") from None
        raise ConnectionLost(f"NATS: {error!r}") from error
    return client


def _survive_complaints(client: NatsClient) -> None:
    """Leave it to the server whether a connection ends that it complains of (``-ERR``).

    nats-py would close its client for good: after credentials that have expired, or a message or subscription
    too many. A server that wants to be rid of a connection ends it, and nats-py makes another one, with the
    credentials file read anew; one that it was refused must not stay open.
    """
    # ruff: noqa: SLF001 - nats-py has no settings for this
    connect_to_server = client._connect_to_server

    async def on_complaint(err_msg: str) -> None:
        client._err = nats.errors.Error(f"nats: {err_msg.strip(chr(39))}")
        await client._error_cb(client._err)

    async def connect_anew(s: Server) -> None:
        if is_cancelled():  # `asyncio.wait_for` of Python 3.11 may lose that
            raise asyncio.CancelledError
        writer = getattr(client._transport, "_io_writer", None)
        if writer is not None:
            writer.close()
        await connect_to_server(s)

    client._process_err = on_complaint  # type: ignore[method-assign]  # nats-py calls it for each -ERR
    client._connect_to_server = connect_anew  # type: ignore[method-assign]  # and this for each attempt


@contextmanager
def _heeding_refusals(client: NatsClient) -> Iterator[None]:
    """Raise in the block, which connects for the first time, when a server refuses the credentials.

    nats-py would try again for as long as there is time. Later that is right: a server whose users are read
    anew, or whose callout has no answer, may refuse for a moment what it has taken before.
    """
    initialise = client._process_connect_init

    async def initialise_once() -> None:
        try:
            await initialise()
        except nats.errors.Error as error:
            if _VIOLATION not in str(error):
                raise
            raise Unauthorized(f"NATS does not let this user in: {_VIOLATION}") from None

    client._process_connect_init = initialise_once  # type: ignore[method-assign]  # for each attempt, too
    try:
        yield
    finally:
        client._process_connect_init = initialise  # type: ignore[method-assign]  # as it was


async def close_nats(client: NatsClient) -> None:
    """Close a connection, also a lost one, where nats-py fails to send the messages that it kept.

    A task of nats-py's that waits for the end of the old connection is cancelled then, and the next one to
    wait for it hears of that: no cancellation of ours, which goes on.
    """
    try:
        with suppress(OSError, RuntimeError):  # asyncio's, and uvloop's, about a transport that is closed
            await client.close()
    except asyncio.CancelledError:
        if is_cancelled():
            raise
