"""Groups by ticket: NATS decides who is a member of which, and a member reads what it may read."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from envelope.errors import Unauthorized
from jetstream import JetstreamClient
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nats_site import NODE, site, users_config
from tests.support.nodes import WAIT_SECONDS, run

API = "jetstream.api."
MEMBER = [f"{API}group.join.shop.billing", f"{API}read.shop.orders"]
OF_TWO = [*MEMBER, f"{API}group.join.shop.shipping"]
RIGHTS = {
    "member": MEMBER,
    "of-two": OF_TWO,
    "joins-only": [f"{API}group.join.>"],
    "reads-only": [f"{API}read.>", f"{API}cluster.info"],
}


async def with_partitions(js: JetstreamClient) -> None:
    await js.streams.create("shop/orders", "orders.>", partitions=4, partition_by="subject")
    for number in range(40):
        await js.publish(f"orders.{number}", b"%d" % number)


async def consumed(js: JetstreamClient, group: str, count: int) -> list[str]:
    """Return the subjects of so many records that a member of the group gets."""
    async with js.consume("shop/orders", group=group) as consumer, asyncio.timeout(WAIT_SECONDS):
        return [(await anext(consumer)).subject for _ in range(count)]


def reconfigured(server: NatsServer, rights: dict[str, list[str]]) -> None:
    server.configure(users_config(rights))
    os.kill(server.pid, signal.SIGHUP)


def test_a_member_joins_its_group_and_reads_the_partitions_of_its_stream(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """It needs two rights and its inbox, not one more: the ticket says where the nodes are."""
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with site(tmp_path / "data", server, require="ticket") as there:
            async with there.party(NODE) as owner:
                await with_partitions(owner)
            everything = sorted(f"orders.{number}" for number in range(40))
            async with there.party("member") as js:
                first = await consumed(js, "shop/billing", 30)
            async with there.party("member") as js:
                rest = await consumed(js, "shop/billing", 11)
            assert sorted({*first, *rest}) == everything
            for party, group, missing in (
                ("member", "shop/shipping", r"group\.join\.shop\.shipping"),
                ("reads-only", "shop/billing", r"group\.join\.shop\.billing"),
                ("joins-only", "shop/billing", r"read\.shop\.orders"),
            ):
                async with there.party(party) as js:
                    with pytest.raises(Unauthorized, match=missing):
                        await consumed(js, group, 1)

    run(scenario())


def test_a_member_that_loses_one_group_goes_on_in_the_other(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """Both send heartbeats in one request, which is refused for one of them only."""
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server, require="ticket", ticket_lifetime=1, ticket_grace=1) as there,
            there.party(NODE) as owner,
            there.party("of-two") as js,
        ):
            await owner.streams.create("shop/orders", "orders.>")
            async with (
                js.consume("shop/orders", group="shop/billing") as stays,
                js.consume("shop/orders", group="shop/shipping") as goes,
            ):
                await owner.publish("orders.first", b"x")
                for consumer in (goes, stays):
                    assert (await anext(consumer)).subject == "orders.first"
                reconfigured(server, RIGHTS | {"of-two": MEMBER})
                with pytest.raises(Unauthorized, match=r"group\.join\.shop\.shipping"):
                    await asyncio.wait_for(anext(goes), WAIT_SECONDS)
                await owner.publish("orders.second", b"x")
                async with asyncio.timeout(WAIT_SECONDS):
                    assert (await anext(stays)).subject == "orders.second"
                    await stays.commit()

    run(scenario())
