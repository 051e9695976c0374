"""One connection to NATS, through interruptions: its subscriptions, their denials, acks that are lost."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.aio.client import Client
from nats.js.errors import NoStreamResponseError

from envelope.acks import publish_command
from envelope.errors import Unauthorized
from jetstream.ingest.messages import MessageBlock
from jetstream.node.nats import link as nats_link
from jetstream.node.nats.link import NatsLink, ServiceRequest
from jetstream.node.nats.routes import Route, Routes
from jetstream.node.nats.watch import LinkWatch
from jetstream.node.node import Node
from jetstream.node.runtime.clock import SystemClock
from jetstream.node.runtime.crash import Crash
from jetstream.node.settings.node_config import NatsConfig
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nodes import node_config, request, run
from tests.support.pauses import pause
from tests.support.tcp_proxy import TcpProxy, proxied

NOBODY = 1
"""A port on which nothing listens."""
RECONNECT_WAIT_S = 0.05
MANY = 600
"""More than a server is asked for at once."""


class Told(LinkWatch):
    """Tells when the connection is lost and when it is back."""

    def __init__(self) -> None:
        super().__init__("ingest", SystemClock())
        self.lost_once = asyncio.Event()
        self.back_once = asyncio.Event()

    async def disconnected(self) -> None:
        await super().disconnected()
        self.lost_once.set()

    def connected(self, client: Client) -> None:
        super().connected(client)
        if self.lost_once.is_set():
            self.back_once.set()


@asynccontextmanager
async def linked(url: str) -> AsyncIterator[tuple[NatsLink, Told]]:
    """A link as the node's for ingest, supervised."""
    config = NatsConfig.model_validate({"urls": [url], "reconnect_wait": RECONNECT_WAIT_S})
    told = Told()
    link = NatsLink(config, told, Crash())
    await link.open()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(link.supervise())
        try:
            yield link, told
        finally:
            await link.close()


@asynccontextmanager
async def node_behind(
    proxy: TcpProxy, data: Path, reconnect_wait_s: float = RECONNECT_WAIT_S
) -> AsyncIterator[Node]:
    """A node whose first connection through ``proxy`` is the one for ingest, its second that for answers."""
    url = f"nats://127.0.0.1:{proxy.port}"
    config = node_config(data, url, nats={"urls": [url], "reconnect_wait": reconnect_wait_s})
    async with Node(config) as node:
        yield node


async def interrupted(client: Client, stream: str, *, lasts: bool, times: int = 1) -> None:
    """Return when the ingest connection's interruption of that number has begun, or is over."""
    while True:
        gaps = (await request(client, "stream.info", name=stream))["possible_gaps"]
        if len(gaps) >= times and (gaps[-1].get("until") is None) == lasts:
            return
        await pause()


async def stored_by(client: Client, subject: str) -> tuple[str, int] | None:
    """Publish a message; return which stream has it and as how manieth, None if nobody listens."""
    try:
        ack = await client.jetstream().publish(subject, b"x", timeout=10)
    except NoStreamResponseError:
        return None
    return ack.stream, ack.seq


ANSWERS, INGEST = 0, -1
"""Of a node's connections, in the order in which it opens them."""


def cut(proxy: TcpProxy) -> None:
    """Break the ingest connection without a word: nats-py reconnects."""
    proxy.connections[INGEST].abort()


def refuse(proxy: TcpProxy) -> None:
    """Let the server end the ingest connection, and say why."""
    proxy.connections[INGEST].respond(b"-ERR 'User Authentication Expired'\r\n")
    proxy.connections[INGEST].abort()


@pytest.mark.parametrize("interrupt", [cut, refuse])
def test_what_is_asked_of_streams_while_the_ingest_connection_is_down_holds_afterwards(
    interrupt: Callable[[TcpProxy], None], tmp_path: Path, nats_server: NatsServer
) -> None:
    async def scenario() -> None:
        async with (
            proxied(nats_server.port) as proxy,
            node_behind(proxy, tmp_path / "data"),
            await nats.connect(nats_server.url) as client,
        ):
            for name in ("kept", "moved", "gone", "returned"):
                await request(client, "stream.create", name=name, subject=f"{name}.>")
            proxy.target = NOBODY
            interrupt(proxy)
            await interrupted(client, "kept", lasts=True)
            await request(client, "stream.create", name="late", subject="late.>")
            await request(client, "stream.create", name="brief", subject="brief.>")
            await request(client, "stream.delete", name="brief")
            await request(client, "stream.update", name="moved", subject="new.>")
            await request(client, "stream.update", name="returned", subject="elsewhere.>")
            await request(client, "stream.update", name="returned", subject="returned.>")
            await request(client, "stream.delete", name="gone")
            for times in (1, 2, 3):
                proxy.target = nats_server.port
                await interrupted(client, "kept", lasts=False)
                for subject in ("gone.x", "brief.x", "moved.x", "elsewhere.x"):
                    assert await stored_by(client, subject) is None, subject
                assert await stored_by(client, "new.x") == ("moved", times)
                for name in ("kept", "late", "returned"):
                    assert await stored_by(client, f"{name}.x") == (name, times)
                proxy.target = NOBODY
                proxy.connections[INGEST].abort()
                await interrupted(client, "kept", lasts=True)

    run(scenario())


def test_a_client_that_is_closed_for_good_is_replaced_by_one_with_the_same_subscriptions(
    nats_server: NatsServer,
) -> None:
    async def scenario() -> None:
        delivered: asyncio.Queue[MessageBlock] = asyncio.Queue()
        async with linked(nats_server.url) as (link, told):
            await link.subscribe(Route("s.>", "", delivered.put_nowait))
            await link._client.close()
            await told.back_once.wait()
            async with await nats.connect(nats_server.url) as client:
                await client.publish("s.x", b"x")
                block = await delivered.get()
                assert block.subjects == [b"s.x"]

    run(scenario())


def test_a_subscription_that_ends_before_it_was_sent_is_not_made_later(
    nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with linked(nats_server.url) as (link, told):
            route = Route("gone.>", "", lambda _: None)
            nats_server.pause()
            link._client._max_pending_size = 0  # publishing does not wait
            for _ in range(64):  # more than socket buffers take: nats-py's flusher waits
                await link.publish(b"filler", bytes(1 << 20))
                await asyncio.sleep(0)
            with monkeypatch.context() as impatient:
                impatient.setattr(nats_link, "_FLUSH_SECONDS", 0.1)
                await link.subscribe(route)
            nats_server.kill()
            await told.lost_once.wait()
            await link.unsubscribe(route)
            nats_server.start()
            await told.back_once.wait()
            await link.confirm()
            async with await nats.connect(nats_server.url) as client:
                assert await stored_by(client, "gone.x") is None

    run(scenario())


@pytest.mark.parametrize("interrupt", [cut, refuse])
def test_what_ends_while_the_link_subscribes_anew_stays_ended_and_nothing_is_subscribed_twice(
    interrupt: Callable[[TcpProxy], None], nats_server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, subscribe = asyncio.Event(), Routes.subscribe

    async def tell(routes: Routes, some: Sequence[Route], seconds: float) -> None:
        began.set()
        await subscribe(routes, some, seconds)

    async def scenario() -> None:
        delivered: list[bytes] = []
        routes = [Route(f"s{n}", "", lambda block: delivered.extend(block.subjects)) for n in range(2 * MANY)]
        async with (
            proxied(nats_server.port) as proxy,
            linked(f"nats://127.0.0.1:{proxy.port}") as (link, told),
        ):
            await asyncio.gather(*map(link.subscribe, routes[:MANY]))
            proxy.target = NOBODY
            interrupt(proxy)
            await told.lost_once.wait()
            for route in routes[MANY:]:
                await link.subscribe(route)
            monkeypatch.setattr(Routes, "subscribe", tell)
            proxy.target = nats_server.port
            await began.wait()
            assert not link.connected, "it is not done"
            halfway = next(
                route for route in routes[1:] if route.asked is not None and not route.asked.done()
            )
            ended = {routes[0], routes[MANY - 1], halfway, routes[-1]}
            await asyncio.gather(*map(link.unsubscribe, ended))
            await told.back_once.wait()
            async with await nats.connect(nats_server.url) as client:
                for route in routes:
                    await client.publish(route.subject, b"x")
                for _ in range(2):  # nats-py writes a PING past the messages that wait, as `confirm` says
                    await client.flush()
            await link.confirm()
            assert sorted(delivered) == sorted(
                route.subject.encode() for route in routes if route not in ended
            )

    run(scenario())


def test_a_stream_whose_subject_the_next_server_denies_says_so_until_one_allows_it(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    generous = start_nats_server()
    strict = start_nats_server(users(""))

    async def scenario() -> None:
        async with (
            proxied(generous.port) as proxy,
            node_behind(proxy, tmp_path / "data") as node,
            await nats.connect(generous.url) as at_first,
            await nats.connect(strict.url) as later,
        ):
            for name, group in (("open", None), ("denied", None), ("queued", "workers")):
                await request(at_first, "stream.create", name=name, subject=f"{name}.>", group=group)
            assert node._streams is not None
            assert list(node._streams.problems()) == []
            await move(proxy, strict, later, 1)
            assert (await request(later, "stream.info", name="open"))["state"] == "online"
            assert await stored_by(later, "open.x") == ("open", 1)
            for name in ("denied", "queued"):
                info = await request(later, "stream.info", name=name)
                assert (info["state"], f"'{name}.>'" in info["reason"]) == ("offline", True)
            problems = dict(node._streams.problems())
            assert sorted(problems) == ["denied", "queued"]
            assert all(isinstance(problem, Unauthorized) for problem in problems.values())
            await move(proxy, generous, at_first, 2)
            assert list(node._streams.problems()) == []
            for name in ("open", "denied", "queued"):
                ack = await stored_by(at_first, f"{name}.x")
                assert ack is not None
                assert ack[0] == name

    run(scenario())


def users(more: str) -> str:
    """Return a configuration in which everybody may subscribe to ``open.>`` and ``more``."""
    allowed = f'["_INBOX.>", "jetstream.api.>", "open.>"{more}]'
    return f"""
        authorization {{
            users: [{{ user: u, password: p, permissions: {{ publish: ">", subscribe: {allowed} }} }}]
        }}
        no_auth_user: u
    """


async def move(proxy: TcpProxy, server: NatsServer, client: Client, times: int) -> None:
    """Bring the node's connections to ``server``, for that time; return when both are there and settled."""
    proxy.target = server.port
    for connection in proxy.connections:
        connection.abort()
    async with asyncio.timeout(30):
        while True:
            try:
                await interrupted(client, "open", lasts=False, times=times)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                await pause()
                continue
            return


def test_a_right_that_the_server_takes_away_shows_at_once(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(users(', "taken.>"'))

    async def scenario() -> None:
        async with (
            Node(node_config(tmp_path / "data", server.url)) as node,
            await nats.connect(server.url) as client,
        ):
            for name in ("open", "taken"):
                await request(client, "stream.create", name=name, subject=f"{name}.>")
            assert await stored_by(client, "taken.x") == ("taken", 1)
            configuration = tmp_path / "nats-1" / "nats-server.conf"
            configuration.write_text(configuration.read_text().replace(', "taken.>"', ""))
            os.kill(server.pid, signal.SIGHUP)
            async with asyncio.timeout(30):
                while (await request(client, "stream.info", name="taken"))["state"] == "online":
                    await pause()
            assert node._streams is not None
            assert [name for name, _ in node._streams.problems()] == ["taken"]
            assert await stored_by(client, "taken.x") is None

    run(scenario())


async def nobody_answers(client: Client) -> None:
    """Return once the node does not answer requests any more."""
    while True:
        try:
            await client.request("jetstream.api.cluster.info", b"", timeout=0.5)
        except nats.errors.NoRespondersError:
            return
        except nats.errors.TimeoutError:
            continue  # asked just before


def test_acks_that_cannot_be_sent_are_counted(tmp_path: Path, nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with (
            proxied(nats_server.port) as proxy,
            node_behind(proxy, tmp_path / "data", 60) as node,
            await nats.connect(nats_server.url) as client,
        ):
            await request(client, "stream.create", name="numbers", subject="numbers.>")
            stream = node.stream("numbers")
            assert stream is not None
            assert stream.leading is not None
            proxy.connections[ANSWERS].abort()
            await nobody_answers(client)
            stream.leading.deliver(
                MessageBlock([b"numbers.x"] * 3, [b"_INBOX.x"] * 3, [b"x"] * 3, [None] * 3)
            )
            await stream.leading.drained()
            assert stream.context.counts["acks_dropped"] == 3

    run(scenario())


def test_acks_whose_connection_falls_before_the_end_of_the_turn_are_told_as_lost(
    nats_server: NatsServer,
) -> None:
    async def scenario() -> None:
        async with linked(nats_server.url) as (link, told):
            lost: list[int] = []
            for number in (1, 2):
                link.publish_raw(b"PUB acks 1\r\nx\r\n", partial(lost.append, number))
            assert lost == []
            assert link._client._transport is not None
            link._client._transport.close()  # type: ignore[no-untyped-call]  # nats-py's transport is untyped
            link.flush_raw()
            assert lost == [1, 2]
            await told.back_once.wait()

    run(scenario())


async def cancelled_in_every_turn(call: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Cancel a call in its first turn of the loop, another in its second and so on; return how many it takes.

    The last call ends by itself; every other must end as cancelled.
    """
    turns = 0
    async with asyncio.TaskGroup() as tasks:
        while True:
            task = tasks.create_task(call())
            for _ in range(turns):
                await asyncio.sleep(0)
            if not task.cancel():
                return turns
            await asyncio.wait((task,))
            assert task.cancelled(), f"lives on though it was cancelled in turn {turns}"
            turns += 1


def test_who_is_cancelled_while_it_connects_ends(nats_server: NatsServer) -> None:
    links: list[NatsLink] = []

    async def connect() -> None:
        config = NatsConfig.model_validate({"urls": [nats_server.url]})
        links.append(NatsLink(config, LinkWatch("ingest", SystemClock()), Crash()))
        await links[-1].open()

    async def scenario() -> None:
        try:
            assert await cancelled_in_every_turn(connect) > 5, "it talks with the server in between"
        finally:
            for link in links:
                await link.close()

    run(scenario())


def test_who_is_cancelled_in_the_turn_in_which_an_answer_comes_ends(nats_server: NatsServer) -> None:
    async def scenario() -> None:
        async with linked(nats_server.url) as (link, _):

            def answer(request: ServiceRequest) -> None:
                link.publish_raw(publish_command(request.reply, b"yes"), lambda: None)

            await link.serve("questions", answer)
            async with asyncio.TaskGroup() as tasks:
                asking = tasks.create_task(link.request("questions", b"?", 5))
                await asyncio.sleep(0)  # it has begun then
                [answered] = link._requests._waiting.values()
                answered.add_done_callback(lambda _: asking.cancel())
            assert asking.cancelled()

    run(scenario())
