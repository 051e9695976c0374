"""Rights over HTTP: tickets and tokens as bearer tokens, and names that lead here from elsewhere."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jetstream
from envelope.limits import KIB
from jetstream.node.node import Node
from tests.support.http_reading import HttpAnswer, ask
from tests.support.nodes import nats_and_node, run
from tests.support.socket_operations import ticket

TOKEN = "swordfish"
SEGMENT_BYTES = 64 * KIB


@asynccontextmanager
async def guarded(directory: Path, **socket: object) -> AsyncIterator[tuple[Node, jetstream.JetstreamClient]]:
    """A node with two streams, whose socket wants tickets."""
    settings = {"port": 0, "require": "ticket", **socket}
    async with (
        nats_and_node(directory, http={"port": 0, "token": TOKEN}, socket=settings) as (url, node),
        jetstream.connect(url) as js,
    ):
        for name in ("in", "out"):
            await js.streams.create(name, f"{name}.>", segment_bytes=SEGMENT_BYTES)
            for word in ("a", "b"):
                await js.publish(f"{name}.{word}", word.encode())
        yield node, js


async def shown(node: Node, target: str, credential: str) -> HttpAnswer:
    return await ask(node, target, authorization=f"Bearer {credential}")


def test_a_ticket_opens_what_it_opens_at_the_socket_and_nothing_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as (node, js):
            whole = await ticket(js, "read", stream="in")
            part = await ticket(js, "read", stream="in", subject="in.a")
            group = await ticket(js, "group.join", group="in")
            records = "/v1/streams/in/records"
            assert [line["value"] for line in (await shown(node, records, whole)).lines()] == ["a", "b"]
            assert [line["value"] for line in (await shown(node, records, part)).lines()] == ["a"]
            arrow = (await shown(node, f"{records}?format=arrow", part)).table()
            assert arrow["value"].to_pylist() == [b"a"]
            assert (await shown(node, f"{records}/1/value", whole)).body == b"b"
            assert (await shown(node, "/v1/streams/in", whole)).status == 200
            for target, credential in (
                ("/v1/streams/out/records", whole),
                ("/v1/streams/out", whole),
                ("/v1/streams/out/records/0/value", whole),
                (f"{records}?subject=in.b", part),
                (f"{records}/1/value", part),
                (records, group),
                ("/v1/streams", whole),
                ("/v1/cluster", whole),
                ("/v1/groups/in", group),
            ):
                answer = await shown(node, target, credential)
                assert (answer.status, answer.json()["err_code"]) in {
                    (403, "forbidden"),
                    (404, "record_not_found"),
                }, target

    run(scenario())


def test_what_a_ticket_opens_is_kept_by_no_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, token="catfish") as (node, js):
            await js.publish("in.large", bytes(SEGMENT_BYTES))  # the segment before it is sealed
            target = "/v1/streams/in/records?from=0&to=2"
            assert "etag" in (await shown(node, target, "catfish")).headers
            limited = await shown(node, target, await ticket(js, "read", stream="in", subject="in.a"))
            assert "etag" not in limited.headers
            assert limited.headers["cache-control"] == "no-store"

    run(scenario())


def test_nothing_or_something_wrong_is_challenged_and_audited_as_at_the_socket(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as (node, js):
            whole = await ticket(js, "read", stream="in")
            for headers, code, challenge in (
                ({}, "unauthorized", 'Bearer realm="jetstream"'),
                ({"authorization": f"Basic {whole}"}, "unauthorized", 'Bearer realm="jetstream"'),
                (
                    {"authorization": f"Bearer {whole[:-2]}xx"},
                    "invalid_ticket",
                    'Bearer realm="jetstream", error="invalid_token"',
                ),
            ):
                answer = await ask(node, "/v1/streams/in/records", **headers)
                assert (answer.status, answer.json()["err_code"]) == (401, code)
                assert answer.headers["www-authenticate"] == challenge
            assert (await shown(node, "/v1/streams", TOKEN)).json()["total"] == 2
            records = await shown(node, "/v1/streams/out/records", TOKEN)
            assert records.json()["err_code"] == "forbidden", "who watches a node need not read its records"

    run(scenario())


def test_the_token_of_the_socket_opens_its_records_here_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path, require="token", token="catfish") as (node, _):
            assert len((await shown(node, "/v1/streams/in/records", "catfish")).lines()) == 2
            assert (await shown(node, "/v1/streams/in/records", "dogfish")).status == 401
            assert (await shown(node, "/metrics", "catfish")).status == 401, "the port's own is another"

    run(scenario())


def test_a_web_page_whose_name_leads_here_reads_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0, "hosts": ["Logs.example.com"]}) as (_, node):
            for host, status in (
                ("evil.example.com", 421),
                ("evil.example.com:9293", 421),
                ("localhost.evil.example.com", 421),
                ("", 421),
                ("logs.example.com:9293", 200),
                ("LOCALHOST", 200),
                ("127.0.0.1:9293", 200),
                ("[::1]:9293", 200),
                ("[::1]", 200),
            ):
                answer = await ask(node, "/v1/streams", host=host)
                assert answer.status == status, host
            assert (await ask(node, "/metrics", host="jetstream-0.jetstream.svc")).status == 200

    run(scenario())
