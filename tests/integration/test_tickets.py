"""Reading by ticket: NATS decides who reads which stream, or which subject of it."""

import asyncio
import os
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import jetstream
from envelope.errors import InvalidTicket, RequestError, StreamRecreated, Unauthorized
from metadata.api.ticket_responses import TicketResponse
from tests.conftest import StartNatsServer
from tests.support.commands import jetstream as command
from tests.support.commands import json_lines, succeeded
from tests.support.nats_site import NODE, PASSWORD, Site, site, users_config
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.socket_operations import ticket
from tests.support.tickets import RIGHTS, heard, may_read, orders_site, short_lived


async def values(site_: Site, party: str, stream: str, subject: str | None = None) -> list[str]:
    async with site_.party(party) as js:
        reader = js.read(stream) if subject is None else js.read(stream, subject=subject)
        return [record.subject async for record in reader]


def test_who_may_ask_for_a_ticket_reads_what_it_says_and_nothing_else(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with orders_site(tmp_path, server) as there:
            everything = ["orders.eu.de", "orders.us.ny", "orders.eu.fr", "orders.eu.de.berlin"]
            european = ["orders.eu.de", "orders.eu.fr", "orders.eu.de.berlin"]
            assert await values(there, NODE, "shop/orders") == everything
            assert await values(there, "auditor", "shop/orders") == everything
            assert await values(there, "auditor", "shop/orders", "orders.*.ny") == ["orders.us.ny"]
            assert await values(there, "eu", "shop/orders", "orders.eu.>") == european
            assert await values(there, "eu", "shop/orders", "orders.eu.*") == european[:2]
            assert await values(there, "eu", "shop/orders", "orders.eu.fr") == ["orders.eu.fr"]
            assert await values(there, "one-level", "shop/orders", "orders.*.*") == everything[:3]
            assert await values(there, "deeper", "shop/orders", "orders.*.>") == everything
            with pytest.raises(Unauthorized, match=r"subject\.orders\.\*'"):  # the level that it may not read
                await values(there, "deeper", "shop/orders", "orders.>")
            for party, stream, subject in (
                ("auditor", "secrets", None),
                ("eu", "shop/orders", None),
                ("eu", "shop/orders", "orders.us.>"),
                ("eu", "shop/orders", "orders.>"),
                ("eu", "secrets", None),
                ("one-level", "shop/orders", "orders.>"),
                ("one-level", "shop/orders", "orders.eu.>"),
                ("stranger", "shop/orders", "orders.eu.de"),
            ):
                with pytest.raises(Unauthorized, match=r"read\."):
                    await values(there, party, stream, subject)

    run(scenario())


def test_a_ticket_for_all_levels_needs_one_for_the_first(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server, require="ticket", ticket_lifetime=0.2, ticket_grace=0.2) as there,
            there.party(NODE) as js,
        ):
            all_levels: dict[str, object] = {"stream": "shop/orders", "subject": "orders.eu.>"}
            first = await ticket(js, "read", stream="shop/orders", subject="orders.eu.*")
            others = [
                await ticket(js, "read", stream="shop/orders", subject="orders.us.*"),
                await ticket(js, "read", stream="secrets", subject="orders.eu.*"),
                await ticket(js, "read", stream="shop/orders"),
            ]
            for other in (None, *others):
                with pytest.raises(RequestError, match=r"'orders\.eu\.\*'") as refused:
                    await js.requests.ask("read", {**all_levels, "first_level": other}, TicketResponse)
                assert refused.value.detail == {"field": "first_level"}
            good = {**all_levels, "first_level": first}
            with pytest.raises(InvalidTicket, match="this is no ticket"):
                await js.requests.ask("read", {**all_levels, "first_level": f"{first}="}, TicketResponse)

            async def until_ended() -> None:
                while True:
                    await js.requests.ask("read", good, TicketResponse)

            with pytest.raises(InvalidTicket, match="has ended"):
                await asyncio.wait_for(until_ended(), WAIT_SECONDS)

    run(scenario())


def test_a_reader_goes_on_beyond_the_end_of_its_first_ticket(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            orders_site(tmp_path, server, **short_lived()) as there,
            there.party(NODE) as publisher,
            there.party("eu") as js,
            heard(publisher, "read.>") as asked,
        ):
            reader = js.read("shop/orders", subject="orders.eu.>", follow=True, retry_s=0)
            for _ in range(3):
                await anext(reader)
            async with asyncio.timeout(WAIT_SECONDS):
                while len(asked) < 8:  # for four tickets; the first has ended with its grace, too
                    await publisher.publish("orders.eu.more", b"x")
                    assert (await anext(reader)).subject == "orders.eu.more"
            await reader.aclose()
            assert set(asked) == set(asked[:2]), "the first level, and all"

    run(scenario())


def test_who_loses_the_right_reads_no_more_once_its_ticket_has_ended(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            orders_site(tmp_path, server, **short_lived()) as there,
            there.party(NODE) as publisher,
            there.party("auditor") as js,
        ):
            reader = js.read("shop/orders", follow=True)
            assert (await anext(reader)).subject == "orders.eu.de"
            server.configure(users_config(RIGHTS | {"auditor": [may_read("other")]}))
            os.kill(server.pid, signal.SIGHUP)

            async def read_on() -> None:
                async for _ in reader:
                    await publisher.publish("orders.more", b"x")

            with pytest.raises(Unauthorized, match=r"read\.shop\.orders"):
                await asyncio.wait_for(read_on(), WAIT_SECONDS)

    run(scenario())


def test_while_nats_is_away_a_reader_goes_on_until_its_ticket_and_its_grace_are_over(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            orders_site(tmp_path, server, **short_lived(seconds=2)) as there,
            there.party("auditor", patience_s=0.5) as js,
        ):
            assert len([record async for record in js.read("shop/orders")]) == 4
            server.stop()
            rounds = 0

            async def read_on() -> None:
                nonlocal rounds
                while True:
                    assert len([record async for record in js.read("shop/orders", retry_s=0.1)]) == 4
                    rounds += 1

            with pytest.raises(InvalidTicket, match="no new one"):
                await asyncio.wait_for(read_on(), WAIT_SECONDS)
            assert rounds
            server.start()
            assert len([record async for record in js.read("shop/orders")]) == 4

    run(scenario())


def test_a_reader_finds_a_node_that_starts_again_at_another_port(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            async with orders_site(tmp_path, server) as there:
                js = await stack.enter_async_context(there.party("auditor"))
                reader = js.read("shop/orders", follow=True)
                for _ in range(4):
                    await anext(reader)
                port = there.node.socket_port
            taken = stack.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))  # and nobody listens there
            async with site(tmp_path / "data", server, require="ticket") as there:
                async with there.party(NODE) as publisher:
                    await publisher.publish("orders.later", b"x")
                assert (await anext(reader)).subject == "orders.later"
                assert there.node.socket_port != port

    run(scenario())


def test_a_stream_that_is_made_again_is_read_with_the_same_right(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            orders_site(tmp_path, server) as there,
            there.party(NODE) as owner,
            there.party("auditor") as js,
        ):
            reader = js.read("shop/orders", follow=True)
            assert (await anext(reader)).offset == 0
            await owner.streams.delete("shop/orders")
            await owner.streams.create("shop/orders", "orders.>")
            await owner.publish("orders.anew", b"x")
            with pytest.raises(StreamRecreated):
                async for _ in reader:
                    pass
            assert [record.subject async for record in js.read("shop/orders")] == ["orders.anew"]

    run(scenario())


def test_a_token_opens_everything_beside_tickets(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with orders_site(tmp_path, server, token="sesame") as there:
            assert len(await values(there, "auditor", "shop/orders")) == 4
            address = f"127.0.0.1:{there.node.socket_port}"
            async with jetstream.connect(socket=address, socket_token="sesame") as js:
                assert await js.stream_names() == ["secrets", "shop/orders"]
                assert len([record async for record in js.read("shop/orders")]) == 4
            for token in (None, "wrong"):
                async with jetstream.connect(socket=address, socket_token=token) as js:
                    with pytest.raises(Unauthorized):
                        await js.stream_names()

    run(scenario())


def test_the_command_and_the_blocking_client_read_by_ticket(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    def as_party(name: str) -> str:
        return server.url.replace("nats://", f"nats://{name}:{PASSWORD}@")

    def ask() -> None:
        some = ("read", "shop/orders", "--subject", "orders.eu.*", "--format", "jsonl")
        european = json_lines(succeeded(*some, nats=as_party("eu")))
        assert [record["subject"] for record in european] == ["orders.eu.de", "orders.eu.fr"]
        refused = command("read", "shop/orders", nats=as_party("eu"))
        assert refused.exit_code != 0
        assert "jetstream.api.read.shop.orders" in refused.stderr
        with jetstream.connect_blocking(as_party("auditor")) as js:
            assert len(list(js.read("shop/orders"))) == 4
        assert "signs tickets" in succeeded("cluster", "rotate-key", "--revoke", nats=as_party(NODE))

    async def scenario() -> None:
        async with orders_site(tmp_path, server):
            await asyncio.to_thread(ask)

    run(scenario())
