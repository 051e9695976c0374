"""Readers that catch up, and what is stored meanwhile, take turns on the event loop."""

import asyncio
from pathlib import Path

import pytest

import jetstream
from envelope.limits import MIB
from jetstream.client.read.read_range import ReadRange
from jetstream.fetch.catch_up_scheduler import SHORT_TURN_BYTES, TURN_BYTES, CatchUpScheduler
from jetstream.node.readers.line import SocketLine
from tests.support.nodes import nats_and_node
from tests.support.sockets import run, serving

FOREVER = 1e9


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes the kernel was asked to send of files, each time."""
    lengths: list[int] = []
    send_file = SocketLine.send_file

    def noted(line: SocketLine, fileno: int, position: int, length: int) -> int:
        lengths.append(length)
        return send_file(line, fileno, position, length)

    monkeypatch.setattr(SocketLine, "send_file", noted)
    return lengths


@pytest.mark.parametrize(("is_stored", "longest"), [(False, TURN_BYTES), (True, SHORT_TURN_BYTES)])
def test_a_turn_is_short_while_something_is_stored(
    tmp_path: Path, asked: list[int], *, is_stored: bool, longest: int
) -> None:
    async def test() -> None:
        turns = CatchUpScheduler()
        if is_stored:
            turns.appending(FOREVER)
        async with serving(tmp_path / "data", turns=turns) as world:
            world.stream("large").add(*([bytes(MIB)] for _ in range(4)))
            got = [record.value async for record in world.records(ReadRange("large"))]
            assert got == [bytes(MIB)] * 4
            assert max(asked) == longest

    run(test())


def test_what_a_node_stores_makes_turns_short(tmp_path: Path) -> None:
    async def test() -> None:
        async with nats_and_node(tmp_path) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("orders", "orders.>")
            assert node._streams is not None
            turns, begun = node._streams.catch_up_queue._scheduler, asyncio.get_running_loop().time()
            assert turns.length(begun) == TURN_BYTES
            await js.publish("orders.x", b"1")
            assert turns.length(begun) == SHORT_TURN_BYTES

    run(test())
