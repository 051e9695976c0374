"""Requests that are cancelled: the node answers them at once, and nothing of them is left.

The node's clock stands still here, so that no wait is ever over by itself.
"""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import jetstream
from envelope.errors import RequestCancelled
from envelope.limits import REQUESTS_IN_FLIGHT_MAX
from jetstream.node.readers.connection import SocketConnection
from jetstream.protocol.connection import ClientConnection
from jetstream.protocol.frames import encode_head
from jetstream.protocol.group_requests import SendHeartbeat
from jetstream.protocol.requests import Cancel, Request, encode_request
from tests.support.nodes import nats_and_node
from tests.support.raw_member import joined, members
from tests.support.sockets import World, run, standing, until

WAIT: dict[str, Any] = {"op": "fetch", "stream": "s", "max_wait_ms": 60_000}


def cancelled(header: dict[str, Any]) -> int:
    """The id of a request that was answered as cancelled."""
    assert header["error"]["err_code"] == "cancelled", header
    assert not header["error"]["retriable"]
    number: int = header["id"]
    return number


def connections_of(world: World) -> list[SocketConnection]:
    """The connections of the server."""
    return [each for each in world.server._port._connections if isinstance(each, SocketConnection)]


def test_a_parked_fetch_that_is_cancelled_is_answered_at_once(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer = await world.peer()
            await peer.request(**WAIT, id=1, offset=1)
            await until(lambda: world.server.parked == 1)
            assert cancelled(await peer.ask(op="cancel", id=1)) == 1
            assert world.server.parked == 0
            assert not world.directory.streams["s"].watchers, "N6"
            await peer.request(**WAIT, id=1, offset=1)  # its id is free
            await until(lambda: world.server.parked == 1)
            world.directory.streams["s"].add([b"b"])
            header, _ = await peer.response()
            assert (header["id"], header["next_offset"]) == (1, 2)
            counters = world.server.counters
            assert (counters.requests_cancelled, counters.requests_failed) == (1, 0)
            peer.close()

    run(test(), loop)


def test_a_cancel_of_what_is_not_in_flight_is_no_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer = await world.peer()
            for number in (0, 1, 2**63 - 1):
                await peer.request(op="cancel", id=number)
            assert (await peer.ask(op="metadata", id=1))["more"] is False
            await peer.request(op="cancel", id=1)  # it is answered
            assert (await peer.ask(op="metadata", id=2))["id"] == 2, "nothing else was answered"
            peer.close()

    run(test())


@pytest.mark.parametrize("fields", [{}, {"id": None}, {"id": "1"}, {"id": -1}, {"id": 1, "request": 1}])
def test_a_malformed_cancel_ends_the_connection_with_a_typed_error(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer = await world.peer()
            await peer.request(**WAIT, id=1, offset=1)
            await until(lambda: world.server.parked == 1)
            farewell = await peer.ask(op="cancel", **fields)
            assert farewell["id"] is None
            assert farewell["error"]["err_code"] == "protocol_error"
            assert await peer.ended()
            await until(lambda: world.server.parked == world.server.connections == 0)
            peer.close()

    run(test())


def test_a_full_connection_has_room_again_for_each_request_that_is_cancelled(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer = await world.peer()
            for number in range(REQUESTS_IN_FLIGHT_MAX):
                await peer.request(**WAIT, id=number, offset=1)
            await until(lambda: world.server.parked == REQUESTS_IN_FLIGHT_MAX)
            refused = await peer.ask(op="metadata", id=1000)
            assert refused["error"]["err_code"] == "overloaded"
            assert cancelled(await peer.ask(op="cancel", id=7)) == 7
            assert (await peer.ask(op="metadata", id=1000))["more"] is False
            assert world.server.parked == REQUESTS_IN_FLIGHT_MAX - 1
            peer.close()

    run(test())


def test_a_fetch_that_is_cancelled_while_it_is_woken_is_answered_once(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer, count = await world.peer(), 200
            for number in range(1, count):
                await peer.request(**WAIT, id=number, offset=1)
            await until(lambda: world.server.parked == count - 1)
            for number in range(count, 0, -1):
                await peer.request(op="cancel", id=number)
            world.directory.streams["s"].add([b"b"])  # before any of that is read; they are woken by turns
            answers = [(await peer.response())[0] for _ in range(1, count)]
            assert sorted(header["id"] for header in answers) == list(range(1, count))
            assert any("error" in header for header in answers)
            assert world.server.parked == 0
            assert (await peer.ask(op="metadata", id=1))["id"] == 1, "nothing was answered twice"
            peer.close()

    run(test(), loop)


def test_fetches_of_a_cursor_are_cancelled_in_any_order(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            peer = await world.peer()
            await peer.request(**WAIT, id=1, offset=1, cursor=1)
            for number in (2, 3):
                await peer.request(**WAIT, id=number, offset="next", cursor=1)
            await until(lambda: world.server.parked == 1)
            assert cancelled(await peer.ask(op="cancel", id=2)) == 2, "it waits behind the first"
            world.directory.streams["s"].add([b"b"])
            header, _ = await peer.response()
            assert (header["id"], header["next_offset"]) == (1, 2)
            await until(lambda: world.server.parked == 1)  # the third goes on where the first ended
            await peer.request(**WAIT, id=4, offset="next", cursor=1)
            assert cancelled(await peer.ask(op="cancel", id=3)) == 3, "it is parked"
            header, _ = await peer.response()
            assert (header["id"], header["error"]["err_code"]) == (4, "bad_request"), (
                "the cursor stands nowhere"
            )
            await peer.request(**WAIT, id=5, offset=1, cursor=1)
            assert (await peer.response())[0]["next_offset"] == 2
            peer.close()

    run(test())


def test_what_a_thread_works_on_is_answered_as_cancelled_when_that_is_done(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            goes_on = threading.Event()
            made_before = world.server.selections._thread.begin(goes_on.wait)
            peer = await world.peer()
            await peer.request(op="fetch", stream="s", id=1, offset=0, subject="s.*")
            await peer.request(op="list_offsets", stream="s", id=2, at="earliest")
            await peer.request(op="cancel", id=1)
            assert cancelled(await peer.ask(op="cancel", id=2)) == 2, "it waited for its turn"
            goes_on.set()
            assert await made_before
            header, body = await peer.response()
            assert (cancelled(header), body) == (1, b"")
            assert (await peer.ask(op="list_offsets", stream="s", id=1, at="earliest"))["offset"] == 0
            peer.close()

    run(test(), loop)


def any_fetch(chance: random.Random, end: int) -> dict[str, object]:
    """A fetch that waits or has something to read, of a cursor or of none."""
    offset: object = chance.choice([end, end, end - 1])
    fields: dict[str, object] = {"offset": offset}
    if chance.random() < 0.5:
        fields = {"cursor": chance.randrange(3), "offset": chance.choice([offset, "next"])}
    if chance.random() < 0.1:
        fields["subject"] = "s.*"
    return fields


def test_a_fetch_that_waits_for_the_budget_of_selected_answers_is_cancelled(tmp_path: Path) -> None:
    async def test() -> None:
        async with standing(tmp_path) as world:
            goes_on, selections = threading.Event(), world.server.selections
            made_before = selections._thread.begin(goes_on.wait)
            first, second, third = [await world.peer() for _ in range(3)]
            selected: dict[str, Any] = {"op": "fetch", "stream": "s", "offset": 0, "subject": "s.*"}
            await first.request(**selected, id=1)
            await until(lambda: selections.held_bytes > 0)
            await second.request(**selected, id=1)
            await until(lambda: selections.waiting == 1)
            await third.request(**selected, id=1)
            await until(lambda: selections.waiting == 2)
            assert cancelled(await second.ask(op="cancel", id=1)) == 1
            assert selections.waiting == 1
            await first.request(op="cancel", id=1)
            pendings = [found for each in connections_of(world) for found in each._pending.values()]
            await until(lambda: any(pending.is_cancelled for pending in pendings))
            goes_on.set()
            header, body = await first.response()
            assert await made_before
            assert (cancelled(header), body) == (1, b"")
            assert (await third.response())[0]["next_offset"] == 1, "its turn has come"
            await until(lambda: selections.held_bytes == selections.waiting == 0)
            for peer in (first, second):
                await peer.request(**selected, id=1)
                assert (await peer.response())[0]["next_offset"] == 1
            for peer in (first, second, third):
                peer.close()

    run(test())


@pytest.mark.parametrize("seed", range(3))
def test_no_place_is_lost_whatever_is_cancelled_when(tmp_path: Path, seed: int) -> None:
    async def test() -> None:
        chance = random.Random(seed)
        async with standing(tmp_path) as world:
            peer, stream = await world.peer(), world.directory.streams["s"]
            answered: dict[int, int] = {}

            async def listen() -> None:
                while True:
                    header, _ = await peer.response()
                    answered[header["id"]] = answered.get(header["id"], 0) + 1

            async with asyncio.TaskGroup() as tasks:
                listening = tasks.create_task(listen())
                for number in range(1, 500):
                    await peer.request(**WAIT, id=number, **any_fetch(chance, stream.high_watermark))
                    for _ in range(chance.randrange(3)):
                        await peer.request(op="cancel", id=chance.randrange(max(1, number - 20), number + 2))
                    if chance.random() < 0.05:
                        stream.add([b"v"])
                    if chance.random() < 0.2:
                        await asyncio.sleep(0)
                for number in range(500, 0, -1):
                    await peer.request(op="cancel", id=number)
                await until(lambda: len(answered) == 499)
                listening.cancel()
            assert set(answered.values()) == {1}
            assert world.server.parked == 0
            (connection,) = connections_of(world)
            assert connection._machine.in_flight == len(connection._pending) == 0
            assert not world.server.dispatcher._long_polls._by_connection
            assert not stream.watchers
            peer.close()

    run(test())


def test_a_parked_heartbeat_that_is_cancelled_is_answered_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            async with members((node.socket_host, node.socket_port), "billing") as [one]:
                await joined(one)
                parked = SendHeartbeat(id=one.link.next_id(), beats=[one.beat()], max_wait_ms=60_000)
                outcomes: list[object] = []
                one.link.send(parked, outcomes.append)
                await one.cursors()  # it has been handled by then
                one.link.cancel((parked.id,))
                await until(lambda: len(outcomes) == 1)
                assert isinstance(outcomes[0], RequestCancelled)
                assert one.link.in_flight == 0
                assert not (await one.heartbeat()).refused, "it lives"

    run(scenario())


def test_a_commit_that_somebody_cancels_is_stored_and_answered_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client of ours cancels one."""
    send = ClientConnection.send

    def send_and_cancel(connection: ClientConnection, request: Request) -> bytes:
        return send(connection, request) + encode_head(encode_request(Cancel(id=request.id)))

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            await js.publish("orders.new", b"x")
            async with members((node.socket_host, node.socket_port), "billing") as [one]:
                await joined(one)
                with monkeypatch.context() as patch:
                    patch.setattr(ClientConnection, "send", send_and_cancel)
                    assert not await one.commit(1)
                assert await one.cursors() == {0: 1}

    run(scenario())
