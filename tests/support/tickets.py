"""Rights to read, as an administrator writes them, and streams to read with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypedDict

from nats.aio.msg import Msg

from jetstream import JetstreamClient
from tests.support.nats_server import NatsServer
from tests.support.nats_site import NODE, PASSWORD, Site, site

API: Final = "jetstream.api."


def may_read(stream: str, subject: str | None = None) -> str:
    """Return the permission to read a stream, as an administrator writes it."""
    return f"{API}read.{stream}" + ("" if subject is None else f".subject.{subject}")


RIGHTS: Final = {
    "auditor": [may_read("shop.orders")],
    "eu": [may_read("shop.orders", "orders.eu.>")],
    "one-level": [may_read("shop.orders", "orders.*.*")],
    "deeper": [may_read("shop.orders", "orders.*.>")],
    "team": [may_read("shop.*")],
    "stranger": [may_read("other")],
}


def importing(permission: str) -> str:
    """Return the configuration of a user `eu` in an account that imports one permission, and no more."""
    exported = f'exports: [ {{ service: "{API}>" }} ]'
    log = f"LOG: {{ users: [ {{ user: {NODE}, password: {PASSWORD} }} ], {exported} }}"
    imported = f'imports: [ {{ service: {{ account: LOG, subject: "{permission}" }} }} ]'
    return f"accounts: {{ {log}, SHOP: {{ users: [ {{ user: eu, password: {PASSWORD} }} ], {imported} }} }}"


async def with_orders(there: Site) -> None:
    """Create two streams, with some records of several subjects."""
    async with there.party(NODE) as js:
        await js.streams.create("shop/orders", "orders.>")
        await js.streams.create("secrets", "secrets.>")
        for subject in ("orders.eu.de", "orders.us.ny", "orders.eu.fr", "orders.eu.de.berlin", "secrets.x"):
            await js.publish(subject, subject.encode())


@asynccontextmanager
async def orders_site(directory: Path, server: NatsServer, **socket: object) -> AsyncIterator[Site]:
    """Run a node that wants tickets, and has the streams of `with_orders`; ``socket``: its settings."""
    socket.setdefault("require", "ticket")
    async with site(directory / "data", server, "optional", **socket) as there:
        await with_orders(there)
        yield there


class ShortLived(TypedDict):
    """Settings of a socket whose tickets end soon; clients renew them after a second."""

    require: str
    ticket_lifetime: float
    ticket_grace: float


def short_lived(seconds: float = 1) -> ShortLived:
    """Return the settings for tickets that are good for so long, and as long again."""
    return {"require": "ticket", "ticket_lifetime": seconds, "ticket_grace": seconds}


@asynccontextmanager
async def heard(js: JetstreamClient, subject: str) -> AsyncIterator[list[str]]:
    """Yield the subjects of all requests on ``subject`` meanwhile."""
    found: list[str] = []

    async def note(message: Msg) -> None:
        found.append(message.subject)

    subscription = await js.nats.subscribe(API + subject, cb=note)
    await js.nats.flush()
    yield found
    await subscription.unsubscribe()
