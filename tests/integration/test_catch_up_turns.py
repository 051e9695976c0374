"""While something is stored, readers that catch up take turns; who is at the end waits for nobody."""

import asyncio
from pathlib import Path

import pytest

from envelope.limits import KIB
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.read.read_range import ReadRange
from jetstream.fetch.catch_up_scheduler import CatchUpScheduler
from jetstream.log.disk.machine_id import machine_id
from jetstream.log.log import LogConfig
from jetstream.node.disk.leased_range import Body
from jetstream.node.readers.output import stored_range
from jetstream.protocol.responses import StoredRangeResponse
from tests.support.clocks import ForwardClock
from tests.support.sockets import World, asked, run, serving, until

VALUES = [b"x" * 4_000] * 10
LARGE = LogConfig(segment_bytes=512 * KIB)

by_both_ways = pytest.mark.parametrize("short_circuit", [False, True], ids=["by socket", "short circuit"])


def turns_while_storing(share: float) -> CatchUpScheduler:
    """Have readers wait as if something were stored for the whole test."""
    turns = CatchUpScheduler(share)
    turns.appending(asyncio.get_running_loop().time() + 3600)
    return turns


async def read_all(world: World, access: SocketAccess, readers: int) -> list[list[int]]:
    async def read() -> list[int]:
        found = world.records(ReadRange("s", end="latest"), world.links(access=access), max_bytes=256 * KIB)
        return [record.offset async for record in found]

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(read()) for _ in range(readers)]
    return [task.result() for task in running]


@by_both_ways
def test_readers_that_catch_up_wait_for_their_turns_and_read_everything(
    tmp_path: Path, short_circuit: bool
) -> None:
    async def test() -> None:
        turns = turns_while_storing(0.05)
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns) as world:
            stream = world.stream("s", LARGE)
            stream.add(*(VALUES for _ in range(60)))
            access = SocketAccess(short_circuit=short_circuit)
            assert await read_all(world, access, 3) == [list(range(600))] * 3
            assert world.server.turns_awaited > 0
            assert (world.server.counters.short_circuit_bytes > 0) == short_circuit

    run(test())


@by_both_ways
def test_nobody_waits_while_nothing_is_stored(tmp_path: Path, short_circuit: bool) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data", machine=machine_id(), turns=CatchUpScheduler(0.01)) as world:
            stream = world.stream("s", LARGE)
            stream.add(*(VALUES for _ in range(60)))
            access = SocketAccess(short_circuit=short_circuit)
            assert await read_all(world, access, 2) == [list(range(600))] * 2
            assert world.server.turns_awaited == 0

    run(test())


@by_both_ways
def test_who_has_caught_up_gets_what_is_new_while_others_wait(tmp_path: Path, short_circuit: bool) -> None:
    async def test() -> None:
        turns = turns_while_storing(1e-9)  # the first turn is the last one
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns) as world:
            stream = world.stream("s", LARGE)
            stream.add(*(VALUES for _ in range(60)))
            access = SocketAccess(short_circuit=short_circuit)
            behind = world.batches(ReadRange("s"), world.links(access=access), max_bytes=64 * KIB)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(behind.to_table(), name="behind")
                await until(lambda: world.server.turns_awaited > 0)
                tail = world.records(ReadRange("s", start="latest", follow=True), world.links(access=access))
                async with asked(tail) as outcome:
                    await until(lambda: world.server.parked > 0)
                    stream.add(VALUES)  # 40 KB: more than goes out with its header
                    assert (await outcome()).offset == 600
                assert not waiting.done()
                turns.appending(0.0)  # nothing is stored any more
                assert (await waiting).num_rows == 600
            await tail.aclose()

    run(test())


class CountedTurns(CatchUpScheduler):
    """As many as were granted, whatever they cost."""

    def __init__(self) -> None:
        super().__init__()
        self.granted = 0

    def wait_s(self, now_s: float) -> float:
        """Say that the next one is due once it is granted."""
        return 0.0 if self.granted else now_s

    def taken(self, cost_s: float, now_s: float, local_bytes: int = 0) -> None:
        """Count it down."""
        self.granted -= 1


def test_a_turn_ends_with_its_body_and_the_next_one_is_anothers(tmp_path: Path) -> None:
    """Bodies of 100 KB in turns of 64 KiB: the rest of a second turn would begin the reader's next body."""

    async def test() -> None:
        turns = CountedTurns()
        turns.appending(asyncio.get_running_loop().time() + 3600)
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns) as world:
            world.stream("s", LARGE).add(*([b"x" * 4_000] * 25 for _ in range(40)))
            access, got = SocketAccess(short_circuit=False), [0, 0]

            async def read(number: int) -> None:
                found = world.batches(ReadRange("s"), world.links(access=access), max_bytes=128 * KIB)
                async for batch in found:
                    got[number] += batch.num_rows

            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(read(number)) for number in range(2)]
                await until(lambda: world.server.turns_awaited == 2)
                for _ in range(20):
                    turns.granted = 1
                    await until(lambda: turns.granted == 0)
                await until(lambda: sum(got) >= 10 * 25)
                assert got == [5 * 25, 5 * 25], "one after the other"
                for reader in readers:
                    reader.cancel()

    run(test())


def test_nothing_is_looked_for_while_the_reader_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Body] = []

    def counted(body: Body) -> StoredRangeResponse | None:
        found.append(body)
        return stored_range(body)

    async def test() -> None:
        monkeypatch.setattr("jetstream.node.readers.dispatcher.stored_range", counted)
        turns = turns_while_storing(1e-9)
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns) as world:
            world.stream("s", LARGE).add(*(VALUES for _ in range(60)))
            links = world.links(access=SocketAccess(short_circuit=True))
            reader = world.batches(ReadRange("s"), links, max_bytes=64 * KIB)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(reader.to_table())
                await until(lambda: world.server.turns_awaited > 0)
                assert len(found) == 1
                turns.appending(0.0)
                assert (await waiting).num_rows == 600

    run(test())


def test_who_was_behind_and_is_at_the_end_waits_no_more(tmp_path: Path) -> None:
    """Also where the end is reached by the socket: a reader may give the other way up."""

    async def test() -> None:
        turns = CountedTurns()
        turns.appending(asyncio.get_running_loop().time() + 3600)
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns) as world:
            world.stream("s", LARGE).add(*(VALUES for _ in range(3)))
            peer = await world.peer()
            turns.granted = 1
            first = {"op": "fetch", "stream": "s", "max_bytes": 64 * KIB}
            told = await peer.ask(id=1, offset=0, short_circuit=True, **first)
            assert told["next_offset"] == 10
            await peer.request(id=2, offset=20, **first)
            await until(lambda: world.server.turns_awaited == 1)
            turns.granted = 1
            assert (await peer.response())[0]["next_offset"] == 30
            turns.granted = 0
            assert (await peer.ask(id=3, offset=20, **first))["next_offset"] == 30
            peer.close()

    run(test())


@by_both_ways
def test_a_reader_that_leaves_while_it_waits_holds_up_nobody(tmp_path: Path, short_circuit: bool) -> None:
    async def test() -> None:
        turns = turns_while_storing(1e-9)
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns) as world:
            stream = world.stream("s", LARGE)
            stream.add(*(VALUES for _ in range(60)))
            access = SocketAccess(short_circuit=short_circuit)
            links = [world.links(access=access) for _ in range(3)]
            readers = [world.batches(ReadRange("s"), each, max_bytes=64 * KIB) for each in links]
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(reader.to_table()) for reader in readers]
                await until(lambda: world.server.turns_awaited >= 3)
                running[1].cancel()
                links[1].close()
                await until(lambda: world.server.connections == 2)
                assert len(world.server._catch_up_queue._waiting) == 2
                turns.appending(0.0)
            assert [task.result().num_rows for task in (running[0], running[2])] == [600, 600]

    run(test())


@by_both_ways
def test_a_reader_that_waits_for_its_turn_is_not_overdue(tmp_path: Path, short_circuit: bool) -> None:
    """A peer that takes nothing is cut off after a while; to one that waits nothing is given."""

    async def test() -> None:
        clock, turns = ForwardClock(), turns_while_storing(1e-9)
        async with serving(tmp_path / "data", machine=machine_id(), turns=turns, clock=clock) as world:
            stream = world.stream("s", LARGE)
            stream.add(*(VALUES for _ in range(60)))
            links = world.links(access=SocketAccess(short_circuit=short_circuit))
            reader = world.batches(ReadRange("s"), links, max_bytes=64 * KIB)
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(reader.to_table())
                await until(lambda: world.server.turns_awaited > 0)
                clock.put_forward(300)
                world.server._port._sweep()
                turns.appending(0.0)
                assert (await waiting).num_rows == 600
            assert world.server.counters.connections_opened == 1
            assert world.server.counters.connections_overdue == 0

    run(test())


def test_who_has_had_its_turn_and_takes_nothing_is_overdue(tmp_path: Path) -> None:
    async def test() -> None:
        clock = ForwardClock()
        async with serving(tmp_path / "data", turns=turns_while_storing(1.0), clock=clock) as world:
            world.stream("s", LogConfig()).add(*(VALUES for _ in range(600)))
            peer = await world.peer()
            await peer.request(op="fetch", id=1, stream="s", offset=0, max_bytes=32 * 1024 * KIB)
            await until(lambda: world.server._port._connections != set())
            (connection,) = world.server._port._connections
            await until(lambda: connection._line.writing and not connection.turn.is_awaited)
            clock.put_forward(300)
            world.server._port._sweep()
            assert world.server.counters.connections_overdue == 1
            peer.close()

    run(test())
