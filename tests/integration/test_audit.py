"""Every change leaves one line in the log and one record in ``__audit``, with the client as NATS knows it."""

import asyncio
import json
import logging
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

import jetstream
from envelope.acks import refusal_body
from envelope.errors import Overloaded, Unauthorized
from envelope.headers import REQUEST_INFO
from envelope.internal_streams import AUDIT
from envelope.types import NodeId, TimestampUs
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.node.nats import audit_trail
from jetstream.node.nats.audit_trail import AuditTrail
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.node import Node
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import AuditConfig, NatsConfig
from metadata.api.audit import AuditEvent
from metadata.api.requests import QUESTIONS, REQUESTS
from metadata.api.subjects import request_subject
from tests.conftest import StartNatsServer
from tests.support.audit_records import ENABLED, lines, read
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.commands import REPOSITORY, json_lines, succeeded, up
from tests.support.commands import jetstream as jetstream_command
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import asked, created
from tests.support.nodes import WAIT_SECONDS, NodeProcess, nats_and_node, node_config, request, run
from tests.support.pauses import pause
from tests.support.scraping import metrics

PAGE = (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")
RECIPE = PAGE.partition("\n### Other accounts\n")[2].split("```", 2)[1].partition("\n")[2]
"""Accounts of a node, ``LOG``, and of its publishers, ``SHOP``, each with a user."""

ORDERS = {"name": "orders"}

BODIES: dict[str, Mapping[str, object]] = {
    "stream.create": {**ORDERS, "subject": "orders.>"},
    "stream.update": {**ORDERS, "labels": {"team": "shop"}},
    "stream.info": ORDERS,
    "stream.list": {},
    "stream.lookup": {"subject": "orders.eu"},
    "stream.publishers": ORDERS,
    "stream.truncate": {**ORDERS, "before": 0},
    "stream.set_txid": {**ORDERS, "txid": 7},
    "stream.reset_time": ORDERS,
    "stream.reassign": {**ORDERS, "replicas": ["nobody"]},
    "stream.elect": {**ORDERS, "node": "nobody", "unclean": False},
    "group.coordinator": {"group": "billing"},
    "cursor.get": {"consumer": "billing", "stream": "orders"},
    "cursor.list": {},
    "group.reset": {"group": "billing", "cursors": [{"stream": "orders", "offset": 0}]},
    "group.list": {},
    "group.info": {"group": "billing"},
    "group.delete": {"group": "billing"},
    "cluster.info": {},
    "cluster.update": {"default_replicas": 1},
    "cluster.drain": {"node": "nobody"},
    "cluster.rebalance": {},
    "cluster.remove": {"node": "nobody"},
    "cluster.rotate_key": {"revoke": True},
    "read": {"stream": "orders"},
    "group.join": {"group": "billing"},
    "namespace.limit": {"name": "shop", "streams": 20},
    "namespace.info": {"name": "shop"},
    "namespace.list": {},
    "stream.delete": ORDERS,
    "stream.restore": ORDERS,
}
"""A request of each kind, in an order in which most succeed."""

REFUSED = {"stream.reassign", "stream.elect", "stream.restore", "cluster.drain", "cluster.remove"}
"""What one node without an object store cannot do."""


async def records(node: Node, count: int) -> list[dict[str, Any]]:
    """Return what is in the audit's stream, once it has so many records."""
    async with jetstream.connect(socket=f"127.0.0.1:{node.socket_port}") as client:
        return await read(client, count)


def test_the_table_has_every_request() -> None:
    assert set(BODIES) == set(REQUESTS)


def test_every_change_leaves_one_line_and_one_record_and_no_question_does(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with (
            nats_and_node(tmp_path, audit=ENABLED) as (url, node),
            await nats.connect(url) as client,
        ):
            results: list[tuple[str, str]] = []
            for operation, body in BODIES.items():
                answer = await request(client, request_subject(operation, body), **body)
                assert (operation in REFUSED) == ("error" in answer), answer
                if REQUESTS[operation] not in QUESTIONS:
                    results.append((operation, answer.get("error", {}).get("err_code", "done")))
            dry = await request(client, "cluster.rebalance", dry_run=True)
            assert "error" not in dry
            found = await records(node, len(results))
            assert [(each["operation"], each["result"]) for each in found] == results
            assert {each["node"] for each in found} == {node.node_id}
            return found

    with caplog.at_level(logging.INFO, logger="jetstream"):
        found = run(scenario())
    assert lines(caplog) == found
    names = {each["operation"]: each.get("name") for each in found}
    assert names["stream.delete"] == "orders"
    assert (names["group.reset"], names["cluster.drain"], names["cluster.rebalance"]) == (
        "billing",
        "nobody",
        None,
    )
    assert len({each["id"] for each in found}) == len(found)


NODE_RIGHTS = 'publish: [ "_INBOX.>", "_R_.>", "jetstream.api.audit.>" ]'


def test_a_client_in_another_account_is_named_as_nats_knows_it_and_cannot_say_otherwise(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """With the accounts of docs/operations.md, where the import shares what NATS knows of a client."""
    server = start_nats_server(
        RECIPE.replace('publish: [ "_INBOX.>", "_R_.>" ]', NODE_RIGHTS).replace(
            '"jetstream.api.>" ]', '"jetstream.api.>", "_INBOX.>" ]'
        )
    )
    forged = {REQUEST_INFO: '{"acc":"LOG","user":"node"}'}
    identity = {"urls": [server.url], "user": "node", "password": "node-secret"}

    async def scenario() -> None:
        async with (
            Node(node_config(tmp_path / "data", server.url, nats=identity, audit=ENABLED)) as node,
            await nats.connect(server.url, user="shop", password="shop-secret", name="till\n") as client,
        ):
            body = b'{"name":"orders","subject":"orders.>"}'
            reply = await client.request("jetstream.api.stream.create", body, timeout=10, headers=forged)
            assert b'"created":true' in reply.data
            # Where one node hands requests to another, no other account gets past the audit.
            aside = f"jetstream.api.node.{node.node_id}.stream.delete"
            await client.request(aside, b'{"name":"other"}', timeout=10)
            created, deleted = await records(node, 2)
            for record in (created, deleted):
                who = record["client"]
                assert (who["acc"], who["user"], who["name"], who["host"]) == (
                    "SHOP",
                    "shop",
                    "till\n",
                    "127.0.0.1",
                )
                assert who["id"] == client.client_id
            assert (deleted["operation"], deleted["result"]) == ("stream.delete", "stream_not_found")
            refused = json.loads(
                (await client.request("jetstream.api.audit.stream.delete", b"{}", timeout=10)).data
            )
            assert refused["error"]["err_code"] == Unauthorized.ack_code
            assert len(await records(node, 2)) == 2

    run(scenario())
    assert not [line for line in server.log_lines if "Violation" in line]


ONLY_NODES = """
    authorization { users: [
      { user: node, password: pw, permissions: { publish: { allow: ">", deny: %s }, subscribe: ">" } }
      { user: admin, password: pw, permissions: {
          publish: { allow: "jetstream.api.>", deny: ["jetstream.api.audit.>", "jetstream.api.node.>"] }
          subscribe: "_INBOX.>"
      } }
    ] }
"""
MUTE = ONLY_NODES % '"jetstream.api.audit.>"'
"""A server that lets a node put nothing on record."""
STORED, DROPPED = (("jetstream_audit_records_total", (outcome,)) for outcome in ("stored", "dropped"))
WAITING = ("jetstream_audit_records_waiting", ())


@asynccontextmanager
async def node_and_admin(
    data: Path, server: NatsServer, **audit: object
) -> AsyncIterator[tuple[Node, Client]]:
    identity = {"urls": [server.url], "user": "node", "password": "pw"}
    settings = {"nats": identity, "audit": {**ENABLED, **audit}, "http": {"port": 0}}
    async with (
        Node(node_config(data, server.url, **settings)) as node,
        await nats.connect(server.url, user="admin", password="pw", error_cb=_unheard) as client,
    ):
        yield node, client


async def _unheard(error: Exception) -> None:
    """Leave it to the test what NATS refuses."""


def test_an_administrator_may_do_everything_but_write_the_audit(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """With the permissions of docs/operations.md."""
    server = start_nats_server(ONLY_NODES % "[]")

    async def scenario() -> None:
        async with node_and_admin(tmp_path / "data", server) as (node, client):
            assert "error" not in await request(client, "stream.create", name="orders", subject="orders.>")
            await client.publish("jetstream.api.audit.stream.delete", b"{}")
            await client.publish(f"jetstream.api.node.{node.node_id}.stream.delete", b'{"name":"orders"}')
            await client.flush()
            assert "error" not in await request(client, "stream.info", name="orders")
            assert [each["operation"] for each in await records(node, 1)] == ["stream.create"]

    run(scenario())
    assert sum("Violation" in line for line in server.log_lines) == 2


def test_changes_take_place_where_no_record_can_be_stored_and_what_finds_no_room_is_counted(
    tmp_path: Path,
    start_nats_server: StartNatsServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(audit_trail, "_WAITING_MAX", 6)
    server = start_nats_server(MUTE)

    async def scenario() -> None:
        async with node_and_admin(tmp_path / "data", server) as (node, client):
            for number in range(5):
                refused = await request(client, "stream.delete", name=f"nobody{number}")
                assert refused["error"]["err_code"] == "stream_not_found"
            assert (await metrics(node))[WAITING] == 3, "the other half is for changes that took place"
            for number in range(5):
                answer = await request(client, "stream.create", name=f"s{number}", subject=f"s{number}.>")
                assert answer["created"]
            found = await metrics(node)
            assert (found[STORED], found[WAITING], found[DROPPED]) == (0, 6, 4)

    with caplog.at_level(logging.INFO, logger="jetstream"):
        run(scenario())
    assert [each["name"] for each in lines(caplog)] == [
        *(f"nobody{number}" for number in range(5)),
        *(f"s{number}" for number in range(5)),
    ]
    assert caplog.text.count("no room for an audit record") == 4
    assert "audit records are not stored count=6" in caplog.text, "when the node stopped"


def test_a_node_that_is_killed_between_change_and_record_leaves_the_change_and_no_record(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    """Its log has the line; what waited in its memory is lost, and what came before and after is there."""
    mute, heard = start_nats_server(MUTE), start_nats_server(ONLY_NODES % "[]")

    def started(server: NatsServer) -> NodeProcess:
        url = server.url.replace("nats://", "nats://node:pw@")
        node = NodeProcess(tmp_path / "data", url, JETSTREAM_NODE_AUDIT__ENABLED="true")
        node.start()
        return node

    async def create(server: NatsServer, name: str) -> None:
        async with await nats.connect(server.url, user="admin", password="pw") as client:
            answer = await request(client, "stream.create", name=name, subject=f"{name}.>")
            assert answer["created"]

    async def stored(node: NodeProcess, count: int) -> list[str]:
        async with jetstream.connect(socket=node.endpoints["socket"]) as client:
            return [each["name"] for each in await read(client, count)]

    async def existing(server: NatsServer) -> list[str]:
        async with await nats.connect(server.url, user="admin", password="pw") as client:
            return [each["name"] for each in (await request(client, "stream.list"))["streams"]]

    async def scenario() -> None:
        node = started(heard)
        await create(heard, "before")
        assert await stored(node, 1) == ["before"]
        assert node.stop() == 0
        node = started(mute)
        await create(mute, "meanwhile")
        node.kill()
        node = started(heard)
        await create(heard, "after")
        assert await stored(node, 2) == ["before", "after"]
        assert await existing(heard) == ["after", "before", "meanwhile"]
        assert node.stop() == 0

    run(scenario())


def test_a_node_that_stops_stores_what_waits_and_another_retention_holds_from_its_next_start(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(ONLY_NODES % "[]")

    async def scenario() -> None:
        async with node_and_admin(tmp_path / "data", server) as (node, client):
            await request(client, "stream.create", name="orders", subject="orders.>")
            await records(node, 1)
            info = await request(client, "stream.info", name=AUDIT)
            assert info["config"]["retention"] == {"age": "P90D", "bytes": 1 << 30, "messages": None}
            await request(client, "stream.delete", name="orders")  # and the node stops at once
        async with node_and_admin(tmp_path / "data", server, retention={"age": "P1D"}) as (node, client):
            assert [each["operation"] for each in await records(node, 2)] == [
                "stream.create",
                "stream.delete",
            ]
            async with asyncio.timeout(WAIT_SECONDS):
                retention = info["config"]["retention"]
                while retention != {"age": "P1D", "bytes": None, "messages": None}:
                    await pause()
                    retention = (await request(client, "stream.info", name=AUDIT))["config"]["retention"]
            refused = await request(client, "stream.update", name=AUDIT, retention={"age": 1})
            assert refused["error"]["err_code"] == "unsupported"

    run(scenario())


def test_a_node_that_stops_says_which_changes_it_does_not_know_of_and_keeps_no_record_unasked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), await nats.connect(url) as client:
            await request(client, "stream.create", name="orders", subject="orders.>")
            election = json.dumps({**BODIES["stream.elect"], "unclean": True}).encode()
            await client.publish("jetstream.api.stream.elect", election)  # one node alone tries for seconds
            await request(client, "stream.update", name="orders", labels={"team": "shop"})
            assert "error" in await request(client, "stream.info", name=AUDIT)

    with caplog.at_level(logging.INFO, logger="jetstream"):
        run(scenario())
    assert [(each["operation"], each["result"]) for each in lines(caplog)] == [
        ("stream.create", "done"),
        ("stream.update", "done"),
        ("stream.elect", "unavailable"),
    ]


def test_a_record_is_published_with_one_id_until_it_is_acked(nats_server: NatsServer) -> None:
    """A stream that refuses, garbage, and an answer that is lost: the stream knows the repeat by its id."""
    answers = [
        refusal_body(AUDIT, Overloaded("busy")),
        b"{",
        b'{"stream":"__audit","seq":1,"duplicate":true}',
    ]
    heard: list[tuple[str, bytes, dict[str, str] | None]] = []

    async def scenario() -> None:
        config = NatsConfig.model_validate({"urls": [nats_server.url]})
        link = NatsLink(config, LinkWatch("answers", SystemClock()), Crash())
        await link.open()

        async def answer(message: Msg) -> None:
            heard.append((message.subject, message.data, message.headers))
            await message.respond(answers[len(heard) - 1])

        trail = AuditTrail(AuditConfig(enabled=True), "js.api", NodeId("n1"), link)
        async with await nats.connect(nats_server.url) as client, asyncio.TaskGroup() as tasks:
            await client.subscribe("js.api.audit.>", cb=answer)
            await client.flush()
            running = tasks.create_task(trail.run())
            trail.note(AuditEvent(operation="stream.delete", name="orders", time=TimestampUs(0)))
            assert trail.waiting == 1
            await trail._queue.join()
            running.cancel()
        await link.close()
        assert (trail.waiting, trail.counters.stored, trail.counters.dropped) == (0, 1, 0)

    run(scenario())
    assert heard == [heard[0]] * 3
    subject, data, headers = heard[0]
    assert subject == "js.api.audit.stream.delete"
    assert headers == {"Nats-Msg-Id": json.loads(data)["id"]}


def test_the_command_reads_the_audit_as_any_stream(tmp_path: Path) -> None:
    process, endpoints = up(tmp_path / "data", JETSTREAM_NODE_AUDIT__ENABLED="true")
    nats = endpoints["nats"]
    with process:
        succeeded("stream", "create", "orders", "--subject", "orders.>", nats=nats)
        succeeded("stream", "delete", "orders", "--yes", nats=nats)
        until_there = ("--follow", "--limit", "1")
        deleted = ("--subject", "jetstream.api.audit.stream.delete")
        while (read := jetstream_command("read", AUDIT, *deleted, *until_there, nats=nats)).exit_code:
            assert read.exit_code == ExitCode.NOT_FOUND, read.output
        record = json.loads(json_lines(read.stdout)[0]["value"])
        assert (record["operation"], record["name"]) == ("stream.delete", "orders")
        assert process.signalled(signal.SIGTERM)[0] == 0


def test_in_a_cluster_the_node_that_takes_a_request_audits_it_whichever_answers_it(tmp_path: Path) -> None:
    info = {REQUEST_INFO: '{"acc":"SHOP","user":"till"}'}
    changes = 24

    async def scenario(scene: ClusterScene) -> tuple[list[dict[str, Any]], str]:
        async with scene.client() as js:
            await created(js.nats, "orders", ["b", "a", "c"])
            await scene.cluster.until_whole(js.nats, AUDIT)
            answer: dict[str, Any] = {}
            for number in range(changes):
                body = json.dumps({"name": "orders", "labels": {"number": str(number)}}).encode()
                update = "jetstream.api.stream.update"
                answer = json.loads((await js.nats.request(update, body, WAIT_SECONDS, headers=info)).data)
                assert "error" not in answer
            async with asyncio.timeout(WAIT_SECONDS):
                while len(found := await read(js, changes)) < len(logged(scene)):
                    await pause()
            return found, answer["leader"]

    with three_nodes(tmp_path, audit="{ enabled = true }") as scene:
        found, leader = run(scenario(scene))
        by_id = {line["id"]: line for line in logged(scene)}
    assert {record["id"]: record for record in found} == by_id
    assert len(found) == len(by_id)
    updates = [record for record in found if record["operation"] == "stream.update"]
    assert [record["client"] for record in updates] == [{"acc": "SHOP", "user": "till"}] * changes
    assert {record["result"] for record in updates} == {"done"}
    assert {record["node"] for record in updates} - {leader}, "NATS gives requests to all nodes in turn"


def test_a_leader_of_the_audit_that_dies_costs_the_others_no_record_and_none_is_there_twice(
    tmp_path: Path,
) -> None:
    async def scenario(scene: ClusterScene) -> None:
        async with scene.client() as js:
            await created(js.nats, "orders", ["b", "a", "c"])
            leader: str = (await scene.cluster.until_whole(js.nats, AUDIT))["leader"]
            for number in range(24):
                if number == 8:
                    scene.cluster[leader].kill()
                await updated(js.nats, number)
            alive = "abc".replace(leader, "")
            noted = [line["id"] for line in logged(scene) if line["node"] in alive]
            async with asyncio.timeout(WAIT_SECONDS):
                while set(noted) - {*(found := [each["id"] for each in await read(js, len(noted))])}:
                    await pause()
            assert len(found) == len(set(found))
            assert len(noted) >= 16, "those that were asked after the death, at least"

    with three_nodes(tmp_path, audit="{ enabled = true }") as scene:
        run(scenario(scene))


async def updated(client: Client, number: int) -> None:
    """Change the stream; requested again while NATS hands requests to a node that has died."""
    async with asyncio.timeout(WAIT_SECONDS):
        while "config" not in await asked(client, "stream.update", name="orders", labels={"at": str(number)}):
            pass


def logged(scene: ClusterScene) -> list[dict[str, Any]]:
    """Return what all nodes have in their logs; each says so of itself."""
    name = " jetstream.audit "
    found = [(node, line.partition(name)[2]) for node in "abc" for line in scene.logged(node, name)]
    records = [json.loads(record) for _, record in found]
    assert [record["node"] for record in records] == [node for node, _ in found]
    return records
