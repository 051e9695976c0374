"""Refused tickets are on record, few of a flood; tickets and keys themselves are in no line or record."""

import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import jetstream
from envelope.types import TimestampUs
from jetstream.node.node import Node
from jetstream.node.readers.ticket_refusals import HOST_AT_ONCE, TICKET_REFUSED
from jetstream.protocol.frames import encode_head
from jetstream.protocol.group_requests import MemberBeat, SendHeartbeat
from jetstream.protocol.requests import Fetch, GetMetadata, Hello, ListOffsets, ShowTicket, encode_request
from metadata.api.ticket_responses import RotateKeyResponse, TicketResponse
from metadata.tickets import Ticket, TicketKey, signed
from tests.support.audit_records import ENABLED, lines, read
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.member_requests import member_requests
from tests.support.nodes import nats_and_node, run
from tests.support.scraping import get
from tests.support.sockets import RawPeer

SOCKET = {"host": "127.0.0.1", "port": 0, "require": "ticket"}
TOKEN = "the-token-of-executors"
EVERY_TICKET = "eyJleHBpcmVz"
"""What the text of each begins with, those that clients ask for themselves, too."""


def newest_key(node: Node) -> TicketKey:
    assert node._streams is not None
    return node._streams.catalog.ticket_keys[-1]


async def ticket(js: jetstream.JetstreamClient, operation: str, **fields: object) -> str:
    return (await js.requests.ask(operation, dict(fields), TicketResponse)).ticket


async def refusals(js: jetstream.JetstreamClient, count: int) -> list[dict[str, Any]]:
    """Return the records of refused tickets, once there are so many."""
    found: list[dict[str, Any]] = []
    while len(found) < count:
        found = [each for each in await read(js, count) if each["operation"] == TICKET_REFUSED]
    return found


def test_every_refusal_is_one_line_and_one_record_that_says_what_of_which_and_who(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> list[dict[str, Any]]:
        async with (
            nats_and_node(tmp_path, audit=ENABLED, socket=SOCKET) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("in", "in.>")
            good = await ticket(js, "read", stream="in", subject="in.a")
            key = newest_key(node)
            ended = signed(Ticket(key_id=key.key_id, expires=TimestampUs(1), stream="in"), key)
            beat = MemberBeat(group="billing", member="m", generation=1)
            expected = [("hello", None, "invalid_ticket"), ("hello", "in", "invalid_ticket")]
            for text in ("rubbish", ended):
                stranger = RawPeer(node.socket_port)
                await stranger.ask(op="hello", id=0, protocol=1, ticket=text)
                stranger.close()
            peer = RawPeer(node.socket_port, host="127.0.0.2")
            host, port = peer.socket.getsockname()
            await peer.ask(op="hello", id=0, protocol=1, ticket=good)
            for request, name, code in (
                (ShowTicket(id=1, ticket=SecretStr("rubbish")), None, "invalid_ticket"),
                (ShowTicket(id=1, ticket=SecretStr(ended)), "in", "invalid_ticket"),
                (Fetch(id=1, stream="in", offset=0, subject="in.>"), "in", "forbidden"),
                (ListOffsets(id=1, stream="out", at="latest"), "out", "forbidden"),
                (GetMetadata(id=1, streams=["out"]), None, "forbidden"),
                (member_requests("billing")[0], "billing", "forbidden"),
                (SendHeartbeat(id=1, beats=[beat], max_wait_ms=0), "billing", "forbidden"),
            ):
                await peer.request(**json.loads(encode_request(request)))
                await peer.response()
                expected.append((request.op, name, code))
            for allowed in (Fetch(id=1, stream="in", offset=0), ShowTicket(id=1, ticket=SecretStr(good))):
                await peer.request(**json.loads(encode_request(allowed)))
                assert "error" not in (await peer.response())[0]
            peer.close()
            found = await refusals(js, len(expected))
            assert [(each["request"], each.get("name"), each["result"]) for each in found] == expected
            assert {each["client"]["peer"] for each in found[2:]} == {f"{host}:{port}"}
            assert found[0]["client"]["peer"].startswith("127.0.0.1:")
            assert not [each for each in found if "withheld" in each]
            return found

    with caplog.at_level(logging.INFO, logger="jetstream"):
        found = run(scenario())
    assert [each for each in lines(caplog) if each["operation"] == TICKET_REFUSED] == found


def test_a_peer_that_floods_is_on_record_a_few_times_and_hides_no_other_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    flood = 3000

    async def scenario() -> list[dict[str, Any]]:
        async with (
            nats_and_node(tmp_path, audit=ENABLED, socket=SOCKET) as (url, node),
            jetstream.connect(url) as js,
        ):
            await js.streams.create("in", "in.>")
            good = await ticket(js, "read", stream="in")
            peer = RawPeer(node.socket_port)
            await peer.ask(op="hello", id=0, protocol=1, ticket=good)
            for number in range(flood):
                assert "error" in await peer.ask(op="ticket", id=number, ticket="x.y")
            peer.close()
            other = RawPeer(node.socket_port, host="127.0.0.2")
            await other.ask(op="hello", id=0, protocol=1, ticket="x.y")
            other.close()
            found = await refusals(js, HOST_AT_ONCE + 1)
            while not found[-1]["client"]["peer"].startswith("127.0.0.2:"):
                found = await refusals(js, len(found) + 1)
            return found

    with caplog.at_level(logging.INFO, logger="jetstream"):
        found = run(scenario())
    assert len(found) < 2 * HOST_AT_ONCE, "a few more than at once, as time goes on"
    assert len(found) + sum(each.get("withheld", 0) for each in found) == flood + 1
    assert len([each for each in lines(caplog) if each["operation"] == TICKET_REFUSED]) == len(found)


def test_no_ticket_no_token_and_no_key_is_in_a_line_a_record_a_metric_or_a_repr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the level of debugging, with clients of ours and with peers whose requests cannot be read."""
    secrets: set[str] = set()

    async def scenario() -> str:
        socket = {**SOCKET, "token": TOKEN}
        async with (
            nats_and_node(tmp_path, audit=ENABLED, socket=socket, http={"port": 0}) as (url, node),
            jetstream.connect(url) as js,
        ):
            for name in ("in", "out"):
                await js.streams.create(name, f"{name}.>")
                await js.publish(f"{name}.a", b"value")
            for revoke in (False, True):
                async with jetstream.connect(url) as reader:
                    assert [record.value async for record in reader.read("in", subject="in.a")] == [b"value"]
                    async with reader.consume("in", group="billing") as records:
                        assert await anext(aiter(records))
                given = [
                    await ticket(js, "read", stream="in"),
                    await ticket(js, "group.join", group="billing"),
                ]
                key = newest_key(node)
                assert all(text.startswith(EVERY_TICKET) for text in given)
                secrets.update(given, (key.secret,), (text.partition(".")[2] for text in given))
                await js.requests.ask("cluster.rotate_key", {"revoke": revoke}, RotateKeyResponse)
                await misuse(node.socket_port, given)
            secrets.add(newest_key(node).secret)
            found = await refusals(js, 4)
            _, page = await get(node, "/metrics")
            answer = await js.requests.ask("read", {"stream": "in"}, TicketResponse)
            shown = [
                repr(answer),
                *(repr(record) for record in await read(js, len(found))),
                page.decode(),
                repr(node.config),
                repr(newest_key(node)),
                *(repr(hello(text)) for text in secrets),
            ]
            return "\n".join(shown)

    with caplog.at_level(logging.DEBUG):
        text = run(scenario())
    text += "\n".join(logging.Formatter().format(record) for record in caplog.records)
    assert TICKET_REFUSED in text
    assert not [secret for secret in (*secrets, TOKEN, EVERY_TICKET) if secret in text]


def test_three_nodes_that_debug_write_no_key_and_no_ticket(tmp_path: Path) -> None:
    """Also on the way of a key from node to node, and into the catalogue's snapshots."""

    async def scenario(scene: ClusterScene) -> None:
        async with scene.client() as js:
            await scene.created(js.nats, "in", ["a", "b", "c"])
            for revoke in (False, True, False):
                async with jetstream.connect(scene.url) as reader:
                    assert [record async for record in reader.read("in")] == []
                await js.requests.ask("cluster.rotate_key", {"revoke": revoke}, RotateKeyResponse)
            for node in scene.cluster.nodes.values():
                assert node.stop() == 0

    with three_nodes(tmp_path, log_level='"debug"', socket='require = "ticket"') as scene:
        run(scenario(scene))
        log = "\n".join(line for node in "abc" for line in scene.logged(node))
    assert " DEBUG " in log
    assert "ticket key rotated" in log
    assert EVERY_TICKET not in log
    assert not re.search(r"[0-9a-f]{64}", log), "a key, which has so many digits"


def hello(text: str) -> Hello:
    return Hello(id=0, protocol=1, ticket=SecretStr(text), token=SecretStr(TOKEN))


async def misuse(port: int, tickets: list[str]) -> None:
    """Show tickets where they are refused, and in requests that cannot be read."""
    for text in tickets:
        for fields in (
            {"ticket": text[:-2]},
            {"ticket": text * 50},
            {"ticket": [text]},
            {"tickets": text},
            {"client": text, "ticket": 7},
            {"token": text},
            {"token": TOKEN[:-1]},
            {"token": [TOKEN]},
            {"ticket": text},
        ):
            peer = RawPeer(port)
            await peer.ask(op="hello", id=0, protocol=1, **fields)
            requests = (
                {"op": "ticket", "id": 1, "ticket": text[1:]},
                {"op": "ticket", "id": 2, "tickets": text},
            )
            heads = [encode_head(json.dumps(request).encode()) for request in requests]
            with suppress(ConnectionError):  # the hello was refused
                await peer.send(b"".join((*heads, text.encode())))
            assert await peer.ended()
            peer.close()
