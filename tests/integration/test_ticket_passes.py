"""Passes: tickets for a client without NATS, and what a right to a subject alone lets one know."""

import asyncio
import pickle
from pathlib import Path

import pytest

import jetstream
from envelope.errors import Forbidden, InvalidTicket, NoResponders, RequestError, Unauthorized
from jetstream.client.nodes.socket_access import ReadPass
from metadata.api.ticket_responses import RotateKeyResponse
from tests.conftest import StartNatsServer
from tests.support.nats_site import NODE, site, users_config
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.tickets import RIGHTS, importing, may_read, orders_site, short_lived, with_orders


async def read_with(read_pass: ReadPass, stream: str, subject: str = ">") -> list[str]:
    async with jetstream.connect(socket=read_pass) as js:
        return [record.subject async for record in js.read(stream, subject=subject)]


def test_a_pass_opens_what_its_ticket_says_to_a_client_without_nats(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with orders_site(tmp_path, server) as there:
            async with there.party("eu") as js:
                read_pass = await js.read_pass("shop/orders", "orders.eu.*")
                with pytest.raises(Unauthorized, match=r"read\.shop\.orders'"):
                    await js.read_pass("shop/orders")
            assert read_pass.ticket is not None
            assert read_pass.ticket.get_secret_value() not in repr(read_pass)
            carried = pickle.loads(pickle.dumps(read_pass))
            assert await read_with(carried, "shop/orders", subject="orders.eu.*") == [
                "orders.eu.de",
                "orders.eu.fr",
            ]
            with pytest.raises(RequestError, match="tickets"):
                await read_with(carried, "shop/orders")
            with pytest.raises(RequestError, match="pass"):
                async with jetstream.connect(there.url, socket=carried):
                    pass

    run(scenario())


def test_a_pass_for_a_namespace_opens_the_streams_directly_in_it(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with orders_site(tmp_path, server) as there:
            async with there.party(NODE) as owner:
                await owner.streams.create("shop/returns", "returns.>", partitions=2, partition_by="subject")
                await owner.streams.create("shop/eu/returns", "eu.returns.>")
                for subject in ("returns.a", "returns.b", "eu.returns.c"):
                    await owner.publish(subject, b"")
            async with there.party("team") as js:
                read_pass = await js.read_pass("shop/*")
                directly = ["shop/orders", "shop/returns/0", "shop/returns/1"]
                assert await js.stream_names("shop/*") == directly
                with pytest.raises(Unauthorized, match=r"read\.\*'"):
                    await js.read_pass("*")
            async with there.party("auditor") as js:
                with pytest.raises(Unauthorized, match=r"read\.shop\.\*'"):
                    await js.read_pass("shop/*")
            async with jetstream.connect(socket=read_pass) as js:
                assert await js.stream_names() == directly
                assert len([record async for record in js.read("shop/orders")]) == 4
                found = [
                    record.subject for part in (0, 1) async for record in js.read(f"shop/returns/{part}")
                ]
                assert sorted(found) == ["returns.a", "returns.b"]
                for stream in ("secrets", "shop/eu/returns"):
                    with pytest.raises(Forbidden):
                        await anext(js.read(stream))

    run(scenario())


def test_a_pass_for_nodes_that_want_no_ticket_has_none(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with site(tmp_path / "data", server) as there:
            await with_orders(there)
            async with there.party(NODE) as js:
                read_pass = await js.read_pass("shop/orders")
            assert read_pass == ReadPass((f"127.0.0.1:{there.node.socket_port}",), None)
            assert len(await read_with(read_pass, "shop/orders")) == 4

    run(scenario())


def test_a_reader_by_pass_ends_with_its_ticket(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with orders_site(tmp_path, server, **short_lived()) as there:
            async with there.party("auditor") as js:
                read_pass = await js.read_pass("shop/orders")
            async with there.party(NODE) as publisher, jetstream.connect(socket=read_pass) as js:
                reader = js.read("shop/orders", follow=True, retry_s=WAIT_SECONDS * 10)

                async def read_on() -> None:
                    async for _ in reader:
                        await publisher.publish("orders.more", b"x")

                with pytest.raises(InvalidTicket, match="ended"):
                    await asyncio.wait_for(read_on(), WAIT_SECONDS)

    run(scenario())


def test_who_may_read_a_subject_may_know_the_range_and_the_partitions_of_its_stream(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    rights = {"eu": [may_read("shop.parts", "parts.eu.>"), may_read("shop.orders", "orders.eu.>")]}
    server = start_nats_server(users_config(rights))

    async def scenario() -> None:
        async with orders_site(tmp_path, server, **short_lived()) as there:
            async with there.party(NODE) as js:
                await js.streams.create("shop/parts", "parts.>", partitions=2, partition_by="subject")
                await js.streams.create("shop/parts2", "more.>")
            async with there.party("eu") as js:
                parts = ["shop/parts/0", "shop/parts/1"]
                assert await js.stream_names("shop/parts", subject="parts.eu.>") == parts
                assert await js.stream_names("shop/parts/1", subject="parts.eu.>") == parts[1:]
                assert await js.stream_names("shop/orders", subject="orders.eu.>") == ["shop/orders"]
                with pytest.raises(Unauthorized, match=r"read\.shop\.parts'"):
                    await js.stream_names("shop/parts")
                found = await js.ranges(["shop/orders"], subject="orders.eu.*")
                assert (found["shop/orders"].start, found["shop/orders"].end) == (0, 4)
                offset, size = await js.boundary("shop/orders", 0, 1 << 20, subject="orders.eu.>")
                assert offset == 4
                assert size
                for question in (js.ranges(["shop/orders"]), js.boundary("shop/orders", 0, 1)):
                    with pytest.raises(Unauthorized, match=r"read\.shop\.orders'"):
                        await question

    run(scenario())


def test_names_are_asked_with_a_new_ticket_where_the_one_that_was_shown_is_revoked(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """A list without the stream would say that it is gone."""
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with (
            orders_site(tmp_path, server) as there,
            there.party(NODE) as owner,
            there.party("auditor") as js,
        ):
            for _ in range(3):
                assert await js.stream_names("shop/orders") == ["shop/orders"]
                await owner.requests.ask("cluster.rotate_key", {"revoke": True}, RotateKeyResponse)

    run(scenario())


def test_a_reader_that_begins_at_the_end_needs_the_ticket_for_its_own_subject_alone(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users_config(RIGHTS))

    async def scenario() -> None:
        async with orders_site(tmp_path, server) as there, there.party("eu") as js:
            for subject in ("orders.eu.de", "orders.eu.fr"):
                assert len([record async for record in js.read("shop/orders", subject=subject)]) == 1
                assert not [record async for record in js.read("shop/orders", subject=subject, start=4)]

    run(scenario())


@pytest.mark.parametrize(
    ("imported", "subject", "count"),
    [
        (may_read("shop.>"), ">", 4),
        (may_read("shop.orders"), "orders.eu.*", 2),
        (may_read("shop.orders", "orders.eu.>"), "orders.eu.>", 3),
    ],
)
def test_an_account_that_imports_the_right_to_read_alone_reads(
    tmp_path: Path, start_nats_server: StartNatsServer, imported: str, subject: str, count: int
) -> None:
    server = start_nats_server(importing(imported))

    async def scenario() -> None:
        async with orders_site(tmp_path, server) as there, there.party("eu") as js:
            assert len([record async for record in js.read("shop/orders", subject=subject)]) == count
            assert await js.stream_names("shop/orders", subject=subject) == ["shop/orders"]
            with pytest.raises(NoResponders):
                await js.stream_names("secrets")

    run(scenario())
