"""A NATS server that lets a connection have so many subscriptions and no more, or has another complaint."""

import asyncio
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import NoStreamResponseError

from envelope.errors import SubscriptionRefused, Unauthorized, UnavailableError
from envelope.limits import CONTROL_LINE_BYTES_MAX
from jetstream.ingest.messages import MessageBlock
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.routes import Route
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.node import Node
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import NatsConfig
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nodes import node_config, request, run
from tests.support.pauses import pause
from tests.support.tcp_proxy import proxied

LIMIT = 10
"""So many has the connection that answers requests."""
MANY = 200
RECONNECT_WAIT_S = 0.05
FULL = "maximum subscriptions exceeded"


def account(limit: int) -> str:
    """A limit for each connection of an account."""
    return f"""
        accounts {{
            LIMITED {{
                users: [{{ user: node, password: pw }}]
                limits: {{ max_subscriptions: {limit} }}
            }}
        }}
        no_auth_user: node
    """


def connection(limit: int) -> str:
    return f"max_subscriptions: {limit}"


def set_limit(server: NatsServer, kind: Callable[[int], str], limit: int) -> None:
    """Change the limit, in a running server if that can be: for an account."""
    server.configure(kind(limit))
    if kind is account:
        os.kill(server.pid, signal.SIGHUP)
        server.wait_for_log("Reloaded server configuration")
    else:
        server.restart()


def settings(url: str) -> dict[str, Any]:
    return {"urls": [url], "reconnect_wait": RECONNECT_WAIT_S}


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[NatsLink]:
    config = NatsConfig.model_validate(settings(url))
    link = NatsLink(config, LinkWatch("ingest", SystemClock()), Crash())
    await link.open()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.supervise())
        try:
            yield link
        finally:
            await link.close()


@asynccontextmanager
async def node_on(data: Path, url: str) -> AsyncIterator[Node]:
    async with Node(node_config(data, url, nats=settings(url), http={"port": 0})) as node:
        yield node


async def get(node: Node, path: str) -> tuple[int, str]:
    assert node.http_address is not None
    reader, writer = await asyncio.open_connection(*node.http_address)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    return int(head.split(b" ", 2)[1]), body.decode()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():
            await pause()


async def stores(client: Client, name: str) -> bool:
    """Publish a message for a stream; return whether it was stored."""
    try:
        ack = await client.jetstream().publish(f"{name}.x", b"x", timeout=10)
    except NoStreamResponseError:
        return False
    return ack.stream == name


async def answers_again(client: Client) -> None:
    """Return once the node hears requests, after the server was away."""
    async with asyncio.timeout(60):
        while True:
            try:
                await request(client, "stream.list")
            except nats.errors.NoRespondersError:
                await pause()
            else:
                return


async def states(client: Client, names: Iterable[str]) -> dict[str, tuple[str, str | None]]:
    """Return state and reason code of each stream."""
    infos = {name: await request(client, "stream.info", name=name) for name in names}
    return {name: (info["state"], info.get("reason_code")) for name, info in infos.items()}


NAMES = [f"s{number}" for number in range(LIMIT + 2)]
ONLINE, REFUSED = ("online", None), ("offline", SubscriptionRefused.err_code)


async def agree(node: Node, client: Client, log: pytest.LogCaptureFixture) -> None:
    """Everything says the same of each stream; who is online stores."""
    found = await states(client, NAMES)
    assert sorted(found.values()) == sorted([ONLINE] * LIMIT + [REFUSED] * 2)
    offline = {name for name in NAMES if found[name] == REFUSED}
    for name in NAMES:
        assert await stores(client, name) is (name not in offline), name
    status, health = await get(node, "/healthz")
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    problems = json.loads(health)["problems"]
    assert [problem.split(":")[0] for problem in problems] == [f"stream {n}" for n in sorted(offline)]
    assert all(FULL in problem for problem in problems)
    _, metrics = await get(node, "/metrics")
    assert 'jetstream_nats_subscriptions_refused{connection="ingest"} 2' in metrics
    assert 'jetstream_nats_subscriptions_refused{connection="answers"} 0' in metrics
    for name in offline:
        assert f'jetstream_stream_online{{stream="{name}"}} 0' in metrics
        errors = [r.getMessage() for r in log.records if r.levelno == logging.ERROR]
        assert any(f"{name}.>" in error and FULL in error for error in errors)


async def come_online(client: Client) -> None:
    async with asyncio.timeout(60):
        while set((await states(client, NAMES)).values()) != {ONLINE}:
            await pause()
    for name in NAMES:
        assert await stores(client, name), name


@pytest.mark.parametrize("kind", [account, connection])
def test_one_stream_too_many_is_offline_and_says_why_and_the_others_go_on(
    kind: Callable[[int], str],
    tmp_path: Path,
    start_nats_server: StartNatsServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = start_nats_server(kind(LIMIT))

    async def create_all() -> None:
        async with (
            node_on(tmp_path / "data", server.url) as node,
            await nats.connect(server.url) as client,
        ):
            for number, name in enumerate(NAMES):
                answer = await request(client, "stream.create", name=name, subject=f"{name}.>")
                if number < LIMIT:
                    assert answer["state"] == "online"
                else:
                    assert answer["error"]["err_code"] == SubscriptionRefused.err_code
                    assert FULL in answer["error"]["description"]
            await agree(node, client, caplog)
            info = await request(client, "stream.info", name=NAMES[0])
            assert info["possible_gaps"] == [], "the connection was never given up"

    async def find_more_than_it_may_have() -> None:
        async with node_on(tmp_path / "data", server.url) as node:
            async with await nats.connect(server.url) as client:
                await agree(node, client, caplog)
            server.restart()
            await until(lambda: len(_gaps(node, NAMES)) == len(NAMES))
            async with await nats.connect(server.url) as client:
                await answers_again(client)
                await agree(node, client, caplog)
            set_limit(server, kind, LIMIT + 2)
            async with await nats.connect(server.url) as client:
                await answers_again(client)
                await come_online(client)

    async def scenario() -> None:
        await create_all()
        await find_more_than_it_may_have()

    run(scenario())


def _is_back(link: NatsLink, times: int) -> bool:
    return link.watch.counters.reconnects == times and link.connected


def _gaps(node: Node, names: Iterable[str]) -> set[str]:
    """Those that have noted an interruption that is over."""
    streams = {name: node.stream(name) for name in names}
    return {name for name, stream in streams.items() if stream is not None and list(stream.context.gaps)}


def test_a_place_that_becomes_free_is_taken(tmp_path: Path, start_nats_server: StartNatsServer) -> None:
    server = start_nats_server(account(LIMIT))

    async def scenario() -> None:
        async with (
            await nats.connect(server.url) as client,
            node_on(tmp_path / "data", server.url),
        ):
            for name in NAMES:
                await request(client, "stream.create", name=name, subject=f"{name}.>")
            await request(client, "stream.delete", name=NAMES[0])
            async with asyncio.timeout(60):
                while list((found := await states(client, NAMES[1:])).values()).count(ONLINE) < LIMIT:
                    await pause()
            for name, state in found.items():
                assert await stores(client, name) is (state == ONLINE), name

    run(scenario())


def test_partitions_whose_feed_is_refused_say_so_and_come_back(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(account(LIMIT))
    parts = [f"parted/{number}" for number in range(2)]

    async def scenario() -> None:
        async with (
            await nats.connect(server.url) as client,
            node_on(tmp_path / "data", server.url),
        ):
            for name in NAMES[:LIMIT]:
                await request(client, "stream.create", name=name, subject=f"{name}.>")
            answer = await request(
                client,
                "stream.create",
                name="parted",
                subject="parted.>",
                partitions=2,
                partition_by="subject",
            )
            assert answer["error"]["err_code"] == SubscriptionRefused.err_code
            assert set((await states(client, parts)).values()) == {REFUSED}
            set_limit(server, account, LIMIT + 1)
            async with asyncio.timeout(60):
                while set((await states(client, parts)).values()) != {ONLINE}:
                    await pause()

    run(scenario())


def test_a_node_whose_request_api_is_refused_says_so_and_answers_once_it_may(
    tmp_path: Path, start_nats_server: StartNatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = start_nats_server(account(2))

    async def scenario() -> None:
        async with (
            await nats.connect(server.url) as client,
            node_on(tmp_path / "data", server.url) as node,
        ):
            with pytest.raises(nats.errors.NoRespondersError):
                await client.request("jetstream.api.stream.info", b'{"name":"x"}')
            status, health = await get(node, "/healthz")
            assert status == HTTPStatus.SERVICE_UNAVAILABLE
            refused = ("*.*", *(f"{kind}.*.>" for kind in ("cursor", "group", "namespace", "read", "stream")))
            assert json.loads(health)["problems"] == [
                f"NATS refuses the subscription to 'jetstream.api.{pattern}': {FULL}" for pattern in refused
            ]
            errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            assert all(any(f"jetstream.api.{pattern}" in error for error in errors) for pattern in refused)
            set_limit(server, account, LIMIT)
            async with asyncio.timeout(60):
                while (await get(node, "/healthz"))[0] != HTTPStatus.OK:
                    await pause()
            assert "error" in await request(client, "stream.info", name="x")

    run(scenario())


def test_answers_that_cannot_come_are_known_at_once_and_come_when_they_can(
    start_nats_server: StartNatsServer,
) -> None:
    server = start_nats_server(account(1))

    async def scenario() -> None:
        async with linked(server.url) as link, await nats.connect(server.url) as other:

            async def answer(message: Msg) -> None:
                await message.respond(b"yes")

            await other.subscribe("questions", cb=answer)
            await other.flush()
            await link.subscribe(Route("s.>", "", lambda _: None))
            with pytest.raises(UnavailableError, match=FULL):
                await link.request("questions", b"?", 60)
            set_limit(server, account, 2)
            await until(lambda: not link.refused)
            assert await link.request("questions", b"?", 60) == b"yes"

    run(scenario())


def test_many_are_told_apart_in_one_go(start_nats_server: StartNatsServer) -> None:
    """Also by a server that refuses for several reasons, and names subjects in a way that is not theirs."""
    denied = {'"q".>', "S7.>", "s9.>"}
    server = start_nats_server(f"""
        authorization {{
            users: [{{ user: u, password: p, permissions: {{
                publish: ">", subscribe: {{ allow: ">", deny: {json.dumps(sorted(denied))} }}
            }} }}]
        }}
        no_auth_user: u
        max_subscriptions: {MANY}
    """)
    subjects = ['"q".>', "S7.>", *(f"s{number}.>" for number in range(333))]

    async def scenario() -> None:
        heard = list[bytes]()

        def take(block: MessageBlock) -> None:
            heard.extend(block.subjects)

        async with linked(server.url) as link:
            routes = [Route(subject, "", take) for subject in subjects]
            await asyncio.gather(*map(link.subscribe, routes))
            for times in (1, 2):
                taken = [route.subject for route in routes if route.problem is None]
                assert len(taken) == MANY
                kinds = {route.subject: type(route.problem) for route in routes if route.problem is not None}
                assert {subject for subject, kind in kinds.items() if kind is Unauthorized} == denied
                assert set(kinds.values()) == {Unauthorized, SubscriptionRefused}
                async with await nats.connect(server.url) as publisher:
                    for subject in subjects:
                        await publisher.publish(subject.replace(">", "x"), b"x")
                    for _ in range(2):  # nats-py writes a PING past the messages that wait
                        await publisher.flush()
                await link.confirm()
                assert sorted(heard) == sorted(subject.replace(">", "x").encode() for subject in taken)
                heard.clear()
                server.restart()
                await until(partial(_is_back, link, times))

    run(scenario())


def test_a_subject_for_which_the_server_would_end_the_connection_is_not_asked_for(
    nats_server: NatsServer,
) -> None:
    async def scenario() -> None:
        heard = list[bytes]()
        async with linked(nats_server.url) as link, await nats.connect(nats_server.url) as publisher:
            other = Route("s.>", "", lambda block: heard.extend(block.subjects))
            await link.subscribe(other)
            for length in range(CONTROL_LINE_BYTES_MAX - 40, CONTROL_LINE_BYTES_MAX + 1):
                for queue in ("", "q" * 16):
                    route = Route("s" * length, queue, lambda _: None)
                    await link.subscribe(route)
                    fits = length + len(queue) <= CONTROL_LINE_BYTES_MAX - 22
                    assert isinstance(route.problem, SubscriptionRefused) is not fits
            await publisher.publish("s.x", b"x")
            await publisher.flush()
            await link.confirm()
            assert (heard, link.watch.counters.reconnects, other.problem) == ([b"s.x"], 0, None)

    run(scenario())


def test_an_error_that_ends_nothing_is_counted_and_the_connection_stays(
    tmp_path: Path, nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        url = nats_server.url
        async with (
            proxied(nats_server.port) as proxy,
            node_on(tmp_path / "data", f"nats://127.0.0.1:{proxy.port}") as node,
            await nats.connect(url) as client,
        ):
            await request(client, "stream.create", name="s", subject="s.>")
            for connection in proxy.connections:
                for text in ("Invalid Publish Subject", "A Text Of Tomorrow", FULL):
                    connection.respond(f"-ERR '{text}'\r\n".encode())
            assert await stores(client, "s")
            info = await request(client, "stream.info", name="s")
            assert (info["state"], info["possible_gaps"]) == ("online", [])
            _, metrics = await get(node, "/metrics")
            for role in ("ingest", "answers"):
                assert f'jetstream_nats_errors_total{{connection="{role}"}} 3' in metrics
                assert f'jetstream_nats_connected{{connection="{role}"}} 1' in metrics
        assert "A Text Of Tomorrow" in caplog.text

    run(scenario())
