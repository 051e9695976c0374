"""Publishers in another NATS account than the node, with the accounts that docs/operations.md gives.

There NATS makes a reply subject of its own of each message, and of each request.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client

import jetstream
from envelope.errors import DeadlinePassed, JetstreamError
from jetstream import JetstreamClient, PublishAck
from jetstream.node.node import Node
from tests.conftest import StartNatsServer
from tests.support.commands import REPOSITORY
from tests.support.nats_server import NatsServer
from tests.support.nodes import WAIT_SECONDS, node_config, request, run
from tests.support.pauses import pause

PAGE = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
_, _, SECTION = PAGE.partition("\n### Other accounts\n")
_, RECIPE, _ = SECTION.split("```", 2)
RECIPE = RECIPE.partition("\n")[2]
"""Accounts of a node, ``LOG``, and of its publishers, ``SHOP``, each with a user."""

RIGHTS = 'publish: [ "_INBOX.>", "_R_.>" ]'
"""Of the node in the recipe."""
ONLY_ANSWERS = RECIPE.replace(RIGHTS, "allow_responses: true")
CLERK = '{ user: clerk, password: "clerk-secret" }'
"""Somebody in the node's own account, who may do everything."""
BRIEFLY_S = 0.3
MANY = 500


def with_clerk(recipe: str) -> str:
    """Admit a client in the node's own account, too."""
    assert recipe.count("users: [\n") == 1, "the node's account is the first, and lists its users in lines"
    return recipe.replace("users: [\n", f"users: [\n{CLERK}\n")


@asynccontextmanager
async def node_at(data: Path, server: NatsServer, *, acks_on_ingest: bool = False) -> AsyncIterator[Node]:
    identity = {"urls": [server.url], "user": "node", "password": "node-secret"}
    settings = {**identity, "acks_on_ingest": acks_on_ingest, "reconnect_wait": 0.05}
    async with Node(node_config(data, server.url, nats=settings)) as node:
        yield node


async def plain_client(server: NatsServer, user: str) -> Client:
    return await nats.connect(server.url, user=user, password=f"{user}-secret")


def shop(server: NatsServer) -> AbstractAsyncContextManager[JetstreamClient]:
    return jetstream.connect(server.url, user="shop", password="shop-secret")


async def until_stored(node: Node, *values: bytes) -> None:
    """Wait until the stream has these; it is read by socket alone."""
    async with jetstream.connect(socket=f"127.0.0.1:{node.socket_port}") as client:
        while [record.value async for record in client.read("orders")] != list(values):
            await pause()


def violations(server: NatsServer) -> list[str]:
    return [line.partition("Violation")[2] for line in server.log_lines if "Violation" in line]


@pytest.mark.parametrize("rights", ["as on the page", "only answers"])
def test_a_publisher_in_another_account_gets_acks_and_answers(
    tmp_path: Path, start_nats_server: StartNatsServer, rights: str
) -> None:
    is_page = rights == "as on the page"
    server = start_nats_server(RECIPE if is_page else ONLY_ANSWERS)

    async def scenario() -> None:
        async with node_at(tmp_path / "data", server, acks_on_ingest=not is_page):
            async with await plain_client(server, "shop") as plain:
                created = await request(plain, "stream.create", name="orders", subject="orders.>")
                assert created["config"]["name"] == "orders"
                ack = await plain.jetstream().publish("orders.eu", b"one", timeout=WAIT_SECONDS)
                assert (ack.stream, ack.seq, ack.duplicate) == ("orders", 1, None)
            async with shop(server) as client:
                acks = await client.publish_all([("orders.eu", b"%d" % each) for each in range(MANY)])
                assert [each.offset for each in acks] == list(range(1, MANY + 1))
                assert not (await client.publish("orders.us", b"x", message_id="1")).duplicate
                assert (await client.publish("orders.us", b"x", message_id="1")).duplicate
                assert [record.value async for record in client.read("orders", start=MANY + 1)] == [b"x"]

    run(scenario())
    assert violations(server) == []


def test_a_node_without_the_right_to_the_replies_of_other_accounts_acks_in_its_own_alone(
    tmp_path: Path, start_nats_server: StartNatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(with_clerk(RECIPE.replace(RIGHTS, 'publish: [ "_INBOX.>" ]')))

    async def scenario() -> None:
        async with (
            node_at(tmp_path / "data", server) as node,
            await plain_client(server, "clerk") as clerk,
            await plain_client(server, "shop") as other,
        ):
            await request(clerk, "stream.create", name="orders", subject="orders.>")
            with pytest.raises(nats.errors.TimeoutError):
                await other.request("orders.eu", b"theirs", timeout=BRIEFLY_S)
            await until_stored(node, b"theirs")
            assert (await clerk.jetstream().publish("orders.eu", b"ours")).seq == 2

    with caplog.at_level(logging.INFO, logger="jetstream"):
        run(scenario())
    assert 'Permissions Violation for Publish to "_R_.' in caplog.text


@pytest.mark.parametrize("acks_on_ingest", [True, False])
def test_a_node_that_may_only_answer_acks_where_the_message_came_in(
    tmp_path: Path, start_nats_server: StartNatsServer, *, acks_on_ingest: bool
) -> None:
    """On another connection NATS knows of no message to be answered; requests come and go on one."""
    server = start_nats_server(with_clerk(ONLY_ANSWERS))

    async def scenario() -> None:
        async with (
            node_at(tmp_path / "data", server, acks_on_ingest=acks_on_ingest) as node,
            await plain_client(server, "clerk") as clerk,
        ):
            created = await request(clerk, "stream.create", name="orders", subject="orders.>")
            assert created["config"]["name"] == "orders"
            if acks_on_ingest:
                assert (await clerk.jetstream().publish("orders.eu", b"x", timeout=WAIT_SECONDS)).seq == 1
            else:
                with pytest.raises(nats.errors.TimeoutError):
                    await clerk.request("orders.eu", b"x", timeout=BRIEFLY_S)
            await until_stored(node, b"x")

    run(scenario())
    assert ["_INBOX." in violation for violation in violations(server)] == [True] * (not acks_on_ingest)


@pytest.mark.parametrize("recipe", [RECIPE, ONLY_ANSWERS], ids=["as on the page", "only answers"])
@pytest.mark.parametrize("kind", ["singleton", "stream"])
def test_a_message_to_two_streams_gets_both_acks_if_its_service_may_answer_twice(
    tmp_path: Path, start_nats_server: StartNatsServer, recipe: str, kind: str
) -> None:
    answers_twice = recipe.replace(
        '"orders.>", response_type: singleton', f'"orders.>", response_type: {kind}'
    ).replace("allow_responses: true", "allow_responses: { max: 3 }")
    server = start_nats_server(answers_twice)

    async def scenario() -> None:
        async with (
            node_at(tmp_path / "data", server, acks_on_ingest=recipe is ONLY_ANSWERS),
            shop(server) as client,
        ):
            names = ["all", "some"]
            await client.streams.create("all", "orders.>")
            await client.streams.create("some", "orders.eu")
            if kind == "stream":
                acks = await client.publish("orders.eu", b"x", streams=names)
                assert [ack.stream for ack in acks] == names
            else:
                with pytest.raises(DeadlinePassed):
                    await client.publish("orders.eu", b"x", streams=names, timeout=BRIEFLY_S)
                assert (await client.publish("orders.eu", b"y")).offset == 1

    run(scenario())
    assert violations(server) == []


async def acked(client: JetstreamClient) -> PublishAck:
    """Publish until there is an ack: while a connection is down there is none."""
    for _ in range(100):
        with suppress(JetstreamError):
            return await client.publish("orders.eu", b"1", message_id="1", timeout=1)
        await pause()
    raise AssertionError("no ack")


def test_a_node_that_acks_where_the_message_came_in_does_so_on_its_next_connection(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(ONLY_ANSWERS)

    async def scenario() -> None:
        async with (
            node_at(tmp_path / "data", server, acks_on_ingest=True),
            shop(server) as client,
        ):
            await client.streams.create("orders", "orders.>")
            assert (await client.publish("orders.eu", b"0", message_id="0")).offset == 0
            server.restart(kill=True)
            assert (await acked(client)).offset == 1

    run(scenario())


def test_a_message_that_came_by_an_imported_stream_is_stored_and_its_ack_lost(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server("""
        accounts: {
          LOG: {
            users: [ { user: node, password: "node-secret" }, { user: clerk, password: "clerk-secret" } ]
            imports: [ { stream: { account: SHOP, subject: "orders.>" } } ]
          }
          SHOP: {
            users: [ { user: shop, password: "shop-secret" } ]
            exports: [ { stream: "orders.>" } ]
          }
        }
    """)

    async def scenario() -> None:
        async with (
            node_at(tmp_path / "data", server) as node,
            await plain_client(server, "clerk") as clerk,
            await plain_client(server, "shop") as other,
        ):
            await request(clerk, "stream.create", name="orders", subject="orders.>")
            with pytest.raises(nats.errors.TimeoutError):
                await other.request("orders.eu", b"x", timeout=BRIEFLY_S)
            await until_stored(node, b"x")

    run(scenario())
