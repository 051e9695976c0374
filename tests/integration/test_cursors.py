"""Cursors over real sockets: many fetches sent at once, answered in order, each where the last one ended."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from envelope.errors import RequestError
from jetstream.client.read.places import Txid
from jetstream.client.read.read_range import ReadRange
from jetstream.log.log import LogConfig
from tests.support.sockets import RawPeer, World, asked, run, serving, until


async def with_world(tmp_path: Path, test: Callable[[World], Awaitable[None]]) -> None:
    async with serving(tmp_path / "data") as world:
        await test(world)


async def fetch(peer: RawPeer, number: int, offset: int | str = "next", **fields: object) -> None:
    """Ask for one batch."""
    asked_for: dict[str, object] = {"op": "fetch", "id": number, "stream": "s", "cursor": 1, "max_bytes": 1}
    await peer.request(**{**asked_for, "offset": offset, **fields})


async def answers(peer: RawPeer, count: int) -> list[tuple[int, int, int]]:
    """Return id, start and next offset of the next responses."""
    found = [(await peer.response())[0] for _ in range(count)]
    return [(header["id"], header["start_offset"], header["next_offset"]) for header in found]


def test_fetches_sent_at_once_follow_each_other(tmp_path: Path, loop: str) -> None:
    async def test(world: World) -> None:
        world.stream("s").add([b"a"] * 2, [b"b"] * 3, [b"c"])
        peer = await world.peer()
        await fetch(peer, 10, 1)
        for number in (11, 12):
            await fetch(peer, number)
        assert await answers(peer, 3) == [(10, 0, 2), (11, 2, 5), (12, 5, 6)]
        peer.close()

    run(with_world(tmp_path, test), loop)


def test_one_that_waits_holds_up_its_own_cursor_only(tmp_path: Path, loop: str) -> None:
    async def test(world: World) -> None:
        stream = world.stream("s")
        stream.add([b"a"])
        peer = await world.peer()
        await fetch(peer, 10, 1, max_wait_ms=60_000)
        await fetch(peer, 11, max_wait_ms=60_000)
        await fetch(peer, 12, max_wait_ms=60_000)
        await fetch(peer, 20, 0, cursor=2)
        assert await answers(peer, 1) == [(20, 0, 1)]
        assert world.server.parked == 1
        stream.add([b"b"])
        assert await answers(peer, 1) == [(10, 1, 2)]
        stream.add([b"c"], [b"d"])
        assert await answers(peer, 2) == [(11, 2, 3), (12, 3, 4)]
        peer.close()

    run(with_world(tmp_path, test), loop)


def test_after_a_failure_a_cursor_stands_nowhere(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.stream("s").add([b"a"])
        peer = await world.peer()
        await fetch(peer, 10, 99)
        await fetch(peer, 11)
        await fetch(peer, 12, 0)
        await fetch(peer, 13, stream="t")
        found = [(await peer.response())[0] for _ in range(4)]
        codes = [header.get("error", {}).get("err_code") for header in found]
        assert codes == ["offset_out_of_range", "bad_request", None, "bad_request"]
        assert found[2]["next_offset"] == 1
        peer.close()

    run(with_world(tmp_path, test))


def test_a_cursor_remembers_the_life_and_the_history_it_read(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        stream = world.stream("s")
        stream.add([b"a"])
        peer = await world.peer()
        await fetch(peer, 10, 0)
        assert await answers(peer, 1) == [(10, 0, 1)]
        stream.incarnation = "second"
        await fetch(peer, 11)
        assert (await peer.response())[0]["error"]["err_code"] == "stream_recreated"
        peer.close()

    run(with_world(tmp_path, test))


def test_a_cursor_goes_on_behind_what_was_left_out(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.stream("s").add([b"a"] * 2, [b"b"] * 3, [b"c"])
        peer = await world.peer()
        await fetch(peer, 10, 0, subject="s.2")
        await fetch(peer, 11, subject="s.2")
        await fetch(peer, 12)
        found = [await peer.response() for _ in range(3)]
        assert [(header["next_offset"], header["records"]) for header, _ in found] == [(2, 0), (5, 1), (6, 1)]
        peer.close()

    run(with_world(tmp_path, test))


def test_from_its_end_on_a_fetch_is_answered_at_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.stream("s").add([b"a"], [b"b"])
        peer = await world.peer()
        await fetch(peer, 10, 0, end=1, max_wait_ms=60_000)
        await fetch(peer, 11, end=1, max_wait_ms=60_000)
        await fetch(peer, 12, end=1, max_wait_ms=60_000)
        assert await answers(peer, 3) == [(10, 0, 1), (11, 1, 1), (12, 1, 1)]
        peer.close()

    run(with_world(tmp_path, test))


def test_a_server_that_stops_answers_all_that_wait_for_their_turn(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add([b"a"])
            peer = await world.peer()
            for number in range(10, 20):
                await fetch(peer, number, "next" if number > 10 else 1, max_wait_ms=60_000)
            await until(lambda: world.server.parked == 1)
            await world.server.stop()
            assert world.server.parked == 0
            assert await peer.ended()
            peer.close()

    run(test(), loop)


def test_a_connection_that_breaks_leaves_nothing_parked(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        stream = world.stream("s")
        stream.add([b"a"])
        peer = await world.peer()
        await fetch(peer, 10, 1, max_wait_ms=60_000)
        await fetch(peer, 11, max_wait_ms=60_000)
        await until(lambda: world.server.parked == 1)
        peer.close()
        await until(lambda: world.server.connections == 0)
        assert world.server.parked == 0
        stream.add([b"b"])
        assert [record.offset async for record in world.records(ReadRange("s"))] == [0, 1]

    run(with_world(tmp_path, test))


# --- the client library -----------------------------------------------------------------------------


def test_a_reader_that_is_behind_has_several_fetches_under_way(tmp_path: Path, loop: str) -> None:
    async def test(world: World) -> None:
        world.stream("s").add(*([b"x" * 500] for _ in range(400)))
        links = world.links()
        reader = world.records(ReadRange("s"), links, max_bytes=1, prefetch_bytes=1 << 20)
        deepest, offsets = 0, []
        async for record in reader:
            offsets.append(record.offset)
            deepest = max(deepest, (await links.link()).in_flight)
        assert offsets == list(range(400))
        assert deepest >= 16

    run(with_world(tmp_path, test), loop)


def test_a_reader_at_the_end_has_one(tmp_path: Path, loop: str) -> None:
    async def test(world: World) -> None:
        stream = world.stream("s")
        stream.add(*([b"x"] for _ in range(100)))
        links = world.links()
        reader = world.records(ReadRange("s", follow=True), links, max_bytes=1)
        for expected in range(100):
            assert (await anext(reader)).offset == expected
        for expected in range(100, 140):  # those asked ahead are used up
            async with asked(reader) as outcome:
                await until(lambda: world.server.parked == 1)
                stream.add([b"y"])
                assert (await outcome()).offset == expected
        async with asked(reader) as outcome:
            await until(lambda: world.server.parked == 1)
            assert (await links.link()).in_flight == 1
            stream.add([b"z"])
            assert (await outcome()).offset == 140

    run(with_world(tmp_path, test), loop)


def test_many_readers_of_one_connection_share_what_may_be_in_flight(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.stream("s").add(*([b"x"] for _ in range(8)))
        links = world.links()
        readers = [world.records(ReadRange("s"), links, max_bytes=1) for _ in range(200)]

        async def offsets(number: int) -> list[int]:
            return [record.offset async for record in readers[number]]

        found = await asyncio.gather(*(offsets(number) for number in range(len(readers))))
        assert found == [list(range(8))] * len(readers)
        assert world.server.connections == 1

    run(with_world(tmp_path, test))


@pytest.mark.parametrize(("txid", "expected"), [(-1, 0), (0, 0), (7, 7), (19, 19), (20, 20), (2**63 - 1, 20)])
def test_reading_begins_at_a_txid(tmp_path: Path, txid: int, expected: int) -> None:
    async def test(world: World) -> None:
        world.stream("s", LogConfig(segment_bytes=4000)).add(*([b"x"] * 4 for _ in range(5)))
        found = [record.txid async for record in world.records(ReadRange("s", start=Txid(txid)))]
        assert found == list(range(expected, 20))

    run(with_world(tmp_path, test))


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_txid_is_a_64_bit_integer(tmp_path: Path, value: int) -> None:
    async def test(world: World) -> None:
        with pytest.raises(RequestError, match="64-bit"):
            world.records(ReadRange("s", start=Txid(value)))

    run(with_world(tmp_path, test))
