"""The client's connection to NATS."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client as NatsClient
from nkeys import NkeysError  # type: ignore[import-untyped]  # nats-py's extra has no types

from envelope.errors import ConnectionLost, InvalidConfig
from envelope.urls import shown_url, user_in

_IDENTITIES: Final = {"user", "token", "user_credentials", "nkeys_seed", "nkeys_seed_str", "user_jwt_cb"}
"""Options of nats-py that say who the client is; without one of them a URL may."""


async def connect_nats(servers: Sequence[str], options: dict[str, Any], timeout_s: float) -> NatsClient:
    """Connect within ``timeout_s``, and again for as long as it takes whenever the connection is lost.

    nats-py alone would try for minutes at first, and later close the client for good after two.

    Raises:
        ConnectionLost: no server can be reached.
        InvalidConfig: an nkey is none.
    """
    client = NatsClient()
    options.setdefault("max_reconnect_attempts", -1)
    if not _IDENTITIES & options.keys():
        options |= user_in(servers)
    try:
        async with asyncio.timeout(timeout_s):
            await client.connect(list(servers), **options)
    except TimeoutError:
        await client.close()
        raise ConnectionLost(
            f"NATS: {client.last_error or 'no answer'} at {', '.join(map(shown_url, servers))}"
        ) from None
    except (nats.errors.Error, NkeysError, OSError) as error:
        with suppress(AssertionError):  # nats-py's, about a client that has not tried to connect
            await client.close()
        if isinstance(error, NkeysError):
            raise InvalidConfig(f"NATS: the key is none: {error}") from None
        raise ConnectionLost(f"NATS: {error!r}") from error
    return client


async def close_nats(client: NatsClient) -> None:
    """Close a connection, also a lost one, where nats-py fails to send the messages that it kept."""
    with suppress(OSError, RuntimeError):  # asyncio's, and uvloop's, about a transport that is closed
        await client.close()
