"""Where a client looks for nodes that are no longer where they were."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final, TypeVar

from pydantic import BaseModel

from envelope.errors import JetstreamError, NoResponders, Unauthorized
from jetstream.client.nodes.background import Background
from jetstream.client.nodes.greeter import Greeter
from jetstream.client.nodes.socket_access import Address, SocketAccess
from jetstream.client.nodes.tickets import HeldRight, ReadRight, TicketWallet
from tests.support.nodes import run

Model = TypeVar("Model", bound=BaseModel)

BEFORE: Final[Address] = ("127.0.0.1", 1)
AFTER: Final[Address] = ("127.0.0.1", 2)


class Cluster:
    """A node that says over NATS where it is, unless it has a reason to refuse that."""

    def __init__(self, refuses_addresses: JetstreamError | None) -> None:
        self.place = BEFORE
        self.refuses_addresses = refuses_addresses
        self.refuses_tickets: JetstreamError | None = None
        self.tickets = 0

    async def addresses(self) -> Sequence[Address]:
        if self.refuses_addresses is not None:
            raise self.refuses_addresses
        return [self.place]

    async def ask(self, _name: str, _fields: dict[str, object], *models: type[Model]) -> Model:
        if self.refuses_tickets is not None:
            raise self.refuses_tickets
        self.tickets += 1
        host, port = self.place
        return models[0].model_validate(
            {
                "ticket": f"ticket {self.tickets}",
                "expires": datetime.now(UTC),
                "valid_s": 300,
                "nodes": [{"id": "n", "host": host, "port": port}],
            }
        )


@asynccontextmanager
async def greeter_of(cluster: Cluster) -> AsyncIterator[Greeter]:
    async with asyncio.TaskGroup() as tasks:
        background = Background(tasks)
        yield Greeter(cluster, 1.0, SocketAccess(), TicketWallet(cluster, background))
        background.end()


HELD: Final = HeldRight(ReadRight("orders"))


def test_a_ticket_that_came_while_the_node_was_ending_does_not_hide_where_it_went() -> None:
    async def test() -> None:
        cluster = Cluster(NoResponders("it is ending, and has left off answering this"))
        async with greeter_of(cluster) as greeter:
            assert await greeter.addresses(HELD) == [BEFORE]
            cluster.place, cluster.refuses_addresses = AFTER, None
            assert await greeter.addresses(HELD) == [AFTER]
            assert (await greeter.read_pass(HELD)).ticket is None  # no node has wanted one

    run(test())


def test_where_only_a_ticket_says_where_nodes_are_another_one_says_where_they_went() -> None:
    async def test() -> None:
        cluster = Cluster(Unauthorized("cluster.info"))
        async with greeter_of(cluster) as greeter:
            for failed in ((), {AFTER}):
                assert await greeter.addresses(HELD, failed) == [BEFORE]
                cluster.place = AFTER
            assert cluster.tickets == 1
            for reason in (NoResponders("nobody"), Unauthorized("not any more")):
                cluster.refuses_tickets = reason
                assert await greeter.addresses(HELD, {BEFORE}) == [BEFORE], "they may be back there"
            cluster.refuses_tickets = None
            assert await greeter.addresses(HELD, {BEFORE}) == [AFTER]
            assert cluster.tickets == 2

    run(test())
