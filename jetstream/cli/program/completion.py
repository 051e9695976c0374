"""Names of streams and groups for the shell's completion, from the cluster that the command line means.

A person waits at a prompt: whatever is wrong completes nothing, is not reported, and is over at once.
"""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Final

import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.output.console import run_async
from jetstream.client.connection import JetstreamClient

COMPLETION_SECONDS_MAX: Final = 1.0
"""For connecting, asking and answering."""

_KILL_SECONDS: Final = 3.0
"""After these the kernel ends the process: a name server that is silent holds up even its exit."""


def stream_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of streams that begin with ``incomplete``; none if they cannot be had in time."""

    async def find(client: JetstreamClient) -> list[str]:
        return [stream.name for stream in await client.streams.list(incomplete)]

    return _found(context, find)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the names of consumer groups that begin so; none if they cannot be had in time."""

    async def find(client: JetstreamClient) -> list[str]:
        return [each.group for each in await client.groups.list(incomplete)]

    return _found(context, find)


def _found(context: typer.Context, find: Callable[[JetstreamClient], Awaitable[list[str]]]) -> list[str]:
    signal.setitimer(signal.ITIMER_REAL, _KILL_SECONDS)
    logging.disable()  # an error that a library logs would appear in the middle of the command line
    found: list[str] = []
    names = (option.name for option in fields(NatsOptions))
    given = {name: context.params[name] for name in names if context.params.get(name) is not None}
    try:
        run_async(_ask(NatsOptions(**given), find, found))
    except Exception:  # noqa: BLE001 - see the module: what is wrong is said when the command itself runs
        return []
    return found


async def _ask(
    nats: NatsOptions, find: Callable[[JetstreamClient], Awaitable[list[str]]], names: list[str]
) -> None:
    async with asyncio.timeout(COMPLETION_SECONDS_MAX), connected(nats) as client:
        names += await find(client)
