"""A line between reader and node that is faulty at any one byte: every record comes once, in order and whole.

The client library reads from a real node through a proxy that cuts the connection before a byte, flips bits
of it, or falls silent there; for every byte of what the node says in a small conversation. The second
connection is whole. What the protocol cannot find out is listed by field, and nothing else may be wrong.
"""

import asyncio
import json
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest

import jetstream
from envelope.errors import JetstreamError
from jetstream import JetstreamClient
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses
from jetstream.client.read.fetch_pipeline import FetchSettings, Wanted
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings, RecordReader
from jetstream.client.read.records import Record
from jetstream.node.node import Node
from jetstream.protocol.frames import PREFIX
from tests.support.nodes import nats_and_node, run
from tests.support.tcp_proxy import Cut, Fault, Flip, Silence, TcpProxy, Trickle, proxied

BITS: Final = tuple(1 << bit for bit in range(8))
AT_ONCE: Final = 100
"""Readers at one time: enough to use the processor while some of them wait for a deadline."""

DEADLINE_S: Final = 1.5
"""How long a node may be silent: far more than it needs, although a hundred readers share two processors."""

UNHURRIED_S: Final = 15.0
"""Where nobody falls silent: connections are counted, and none may end because the machine is busy."""

ATTEMPTS: Final = 3
"""A machine that does other work may be slower all the same; then the fault may not be met."""

SAMPLED: Final = 3
"""One in so many flips is tried; the deep tests flip every bit of whole conversations."""

SELDOM: Final = 17
"""One in so many places or faults is tried in the test command."""

RETRY_S: Final = 0.5
"""How long a reader tries again that is to do so for a short time only."""

EVERYTHING: Final = ReadRange("s")
ONE_KEY: Final = ReadRange("s", wanted=Wanted(key="one"))
"""Of these three batches the second is left out as a whole."""

FIRST_FETCH: Final = 3
"""Its number among the responses: after hello, metadata and list_offsets."""

EXACT: Final = "every record, once, in order"
WRONG: Final = "other records"
WAITS: Final = "waits for what does not come"


@asynccontextmanager
async def a_small_stream(directory: Path) -> AsyncIterator[tuple[JetstreamClient, Node]]:
    """Three batches of four records each; the keys of the first and the third alternate."""
    async with nats_and_node(directory) as (url, node), jetstream.connect(url) as js:
        await js.streams.create("s", "s.>")
        for batch in range(3):
            keys = ["none"] * 4 if batch == 1 else ["one", "another"] * 2
            await js.publish_all(
                (f"s.{n}", b"value %d of %d" % (n, batch), {"key": keys[n]}) for n in range(4)
            )
        yield js, node


def a_reader(port: int, wanted: ReadRange, deadline_s: float = DEADLINE_S) -> tuple[NodeLinks, RecordReader]:
    """A reader that fetches one batch at a time, and bears with a silent node for ``deadline_s``."""
    links = NodeLinks(FixedAddresses([("127.0.0.1", port)]), deadline_s)
    fetch = FetchSettings(max_bytes=1, max_wait_ms=1, timeout_s=deadline_s)
    return links, RecordReader(BatchReader(links, wanted, ReadSettings(fetch)))


def _op(header: bytes) -> str:
    """Return what a response answers."""
    fields = json.loads(header)
    if "streams" in fields:
        return "metadata"
    return "fetch" if "next_offset" in fields else "list_offsets" if "offset" in fields else "hello"


@dataclass(frozen=True)
class Conversation:
    """What a reader asked for, got, and what the node said on the way."""

    wanted: ReadRange
    records: tuple[Record, ...]
    response: bytes

    def frames(self) -> list[tuple[int, int, int]]:
        """Return where each frame begins, where its header ends, and where it ends."""
        frames, start = [], 0
        while start < len(self.response):
            header_length, body_length = PREFIX.unpack_from(self.response, start)
            header_end = start + PREFIX.size + header_length
            frames.append((start, header_end, header_end + body_length))
            start = header_end + body_length
        return frames

    def until_next_offset(self, offset: int) -> "Conversation":
        """Return it without what a reader at its end may or may not wait for."""
        for start, header_end, end in self.frames():
            if json.loads(self.response[start + PREFIX.size : header_end]).get("next_offset") == offset:
                return replace(self, response=self.response[:end])
        raise AssertionError(f"nobody reached offset {offset}")

    def places(self, of_bodies: int) -> list[int]:
        """Return the places of all bytes of prefixes and headers, and of one in ``of_bodies`` of bodies."""
        return [
            place
            for start, header_end, end in self.frames()
            for place in (*range(start, header_end), *range(header_end, end, of_bodies))
        ]

    def flipped_lengths(self) -> list[Fault]:
        """Return all flips of the frames' lengths."""
        return [
            Flip(start + place, bit)
            for start, _, _ in self.frames()
            for place in range(PREFIX.size)
            for bit in BITS
        ]

    def flipped_digits(self) -> list[Fault]:
        """Return all flips in headers that make another digit of a digit: they may leave another sense."""
        return [
            Flip(place, bit)
            for start, header_end, _ in self.frames()
            for place in range(start + PREFIX.size, header_end)
            for bit in BITS
            if bytes((self.response[place], self.response[place] ^ bit)).isdigit()
        ]

    def field_at(self, place: int) -> tuple[str, str]:
        """Return which op's response the byte belongs to, and which field of it."""
        for start, header_end, end in self.frames():
            if start <= place < end:
                header = self.response[start + PREFIX.size : header_end]
                op = _op(header)
                for field in re.finditer(rb'"(\w+)":("[^"]*"|\d+)', header):
                    if field.start() <= place - start - PREFIX.size < field.end():
                        return op, field[1].decode()
                return "frame", "prefix" if place < start + PREFIX.size else "body"
        raise AssertionError(f"the conversation has {len(self.response)} bytes")


async def conversation(node: Node, wanted: ReadRange, end: int = 12) -> Conversation:
    """Hold it once without a fault; the reader comes to its end when it hears that ``end`` is next."""
    async with proxied(node.socket_port, keeps_responses=True) as proxy:
        links, reader = a_reader(proxy.port, wanted)
        records = tuple([record async for record in reader])
        links.close()
        return Conversation(wanted, records, proxy.response(0)).until_next_offset(end)


async def with_fault(
    node: Node, held: Conversation, fault: Fault, deadline_s: float = DEADLINE_S
) -> tuple[str, int]:
    """Hold it again with a fault on the first connection; return how it went and how many there were."""
    for _ in range(ATTEMPTS):
        outcome = await _with_fault_once(node, held, fault, deadline_s)
        if outcome is not None:
            return outcome
    raise AssertionError(f"{fault} was not met in {ATTEMPTS} conversations")


async def _with_fault_once(
    node: Node, held: Conversation, fault: Fault, deadline_s: float
) -> tuple[str, int] | None:
    """Return None if the fault was not met: a busy machine answered after the reader's deadline."""
    got: list[Record] = []
    async with proxied(node.socket_port, fault) as proxy:
        links, reader = a_reader(proxy.port, held.wanted, deadline_s)
        try:
            async with asyncio.timeout(10 * deadline_s):
                async for record in reader:
                    got.append(record)  # noqa: PERF401 - what was read before an error counts
            outcome = EXACT if tuple(got) == held.records else WRONG
        except TimeoutError:
            outcome = WAITS
        except JetstreamError as error:
            outcome = type(error).__name__ if tuple(got) == held.records[: len(got)] else WRONG
        finally:
            links.close()
        if proxy.connections[0].response_bytes <= fault.at:
            assert outcome != WRONG, f"without {fault}"
            return None
        return outcome, len(proxy.connections)


async def outcomes(
    node: Node, held: Conversation, faults: Iterable[Fault], deadline_s: float = DEADLINE_S
) -> list[tuple[Fault, str, int]]:
    """Hold the conversation with each fault, some at a time."""
    found: list[tuple[Fault, str, int]] = []
    left = deque(faults)

    async def one_after_the_other() -> None:
        while left:
            fault = left.popleft()
            found.append((fault, *await with_fault(node, held, fault, deadline_s)))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(one_after_the_other())
    return found


def harmful(held: Conversation, found: Sequence[tuple[Fault, str, int]]) -> set[tuple[str, str, str]]:
    """Return the fields in which a fault did harm, and which."""
    return {(*held.field_at(fault.at), outcome) for fault, outcome, _ in found if outcome != EXACT}


@pytest.mark.parametrize(
    "one_in", [SELDOM, pytest.param(2, marks=pytest.mark.slow("tests/integration/test_reader_faults.py"))]
)
def test_a_connection_that_is_cut_before_any_byte_is_resumed_there(tmp_path: Path, one_in: int) -> None:
    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            held = await conversation(node, EVERYTHING)
            assert [record.offset for record in held.records] == list(range(12))
            assert len(held.frames()) >= FIRST_FETCH + 3, "a fetch for each batch"
            found = await outcomes(node, held, map(Cut, held.places(of_bodies=12)[::one_in]), UNHURRIED_S)
            assert {(outcome, connections) for _, outcome, connections in found} == {(EXACT, 2)}

    run(test())


@pytest.mark.deep
def test_a_connection_that_is_cut_before_really_any_byte_is_resumed_there(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            for wanted in (EVERYTHING, ONE_KEY):
                held = await conversation(node, wanted)
                found = await outcomes(node, held, map(Cut, held.places(of_bodies=1)), UNHURRIED_S)
                assert {(outcome, connections) for _, outcome, connections in found} == {(EXACT, 2)}

    run(test())


@pytest.mark.slow(
    "tests/integration/test_reader_faults.py::test_a_connection_that_is_cut_before_any_byte_is_resumed_there"
)
def test_a_line_that_falls_silent_anywhere_is_given_up(tmp_path: Path) -> None:
    """Nobody is told: the client's own deadline ends it, as it waits for a hello, an offset or a record."""

    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            held = await conversation(node, EVERYTHING)
            found = await outcomes(node, held, map(Silence, held.places(of_bodies=50)[::3]))
            assert {outcome for _, outcome, _ in found} == {EXACT}

    run(test())


@pytest.mark.slow(
    "tests/integration/test_short_circuit_faults.py::test_a_flipped_bit_anywhere_is_never_a_wrong_record",
    "tests/integration/test_reader_distrust.py",
)
def test_a_flipped_bit_in_any_byte_is_found(tmp_path: Path) -> None:
    """A sample of one bit of every byte, by lot, and of all bits of lengths and digits."""

    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            held = await conversation(node, EVERYTHING)
            chance = random.Random(5)
            faults: list[Fault] = [Flip(at, chance.choice(BITS)) for at in held.places(of_bodies=8)]
            faults += held.flipped_lengths() + held.flipped_digits()
            found = await outcomes(node, held, faults[::SAMPLED])
            assert harmful(held, found) == set()

    run(test())


@pytest.mark.deep
@pytest.mark.parametrize("bit", BITS)
def test_any_flipped_bit_is_found(tmp_path: Path, bit: int) -> None:
    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            for wanted in (EVERYTHING, ONE_KEY):
                held = await conversation(node, wanted)
                found = await outcomes(node, held, (Flip(at, bit) for at in range(len(held.response))))
                assert harmful(held, found) == set()

    run(test())


@pytest.mark.slow(
    "tests/integration/test_short_circuit_faults.py::test_a_flipped_bit_anywhere_is_never_a_wrong_record",
    "tests/integration/test_reader_distrust.py",
)
def test_a_flipped_digit_is_found_where_the_node_leaves_records_out(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            held = await conversation(node, ONE_KEY)
            assert [record.offset for record in held.records] == [0, 2, 8, 10]
            bodies = [end - header_end for _, header_end, end in held.frames()[FIRST_FETCH:]]
            assert 0 in bodies, "a batch was left out as a whole"
            assert sum(bodies) > 0
            found = await outcomes(node, held, held.flipped_digits()[::SAMPLED])
            assert harmful(held, found) == set()

    run(test())


@pytest.mark.slow(
    "tests/integration/test_short_circuit_faults.py::test_a_flipped_bit_anywhere_is_never_a_wrong_record",
    "tests/integration/test_reader_distrust.py",
)
def test_a_flipped_digit_is_found_where_a_reader_begins_or_ends_at_a_moment(tmp_path: Path) -> None:
    async def test() -> None:
        async with a_small_stream(tmp_path) as (js, node):
            for _ in range(2):
                await js.publish("s.0", b"beyond the end")
            moments = [record.time async for record in js.read("s")]
            held = await conversation(node, ReadRange("s", start=moments[4]), end=14)
            assert [record.offset for record in held.records] == list(range(4, 14))
            found = await outcomes(node, held, held.flipped_digits()[::SAMPLED])
            assert harmful(held, found) == set()
            held = await conversation(node, replace(ONE_KEY, end=moments[12], follow=True), end=13)
            assert [record.offset for record in held.records] == [0, 2, 8, 10]
            found = await outcomes(node, held, held.flipped_digits()[::SAMPLED])
            assert harmful(held, found) == set()

    run(test())


def test_a_body_that_comes_slowly_is_waited_for(tmp_path: Path) -> None:
    """For longer than a node may be silent, after its last whole answer and again: it is not silent."""

    async def test() -> None:
        async with a_small_stream(tmp_path) as (_, node):
            held = await conversation(node, EVERYTHING)
            first_body = held.frames()[FIRST_FETCH][1]
            slowly = Trickle(first_body, pieces=50, piece_bytes=20, every_s=0.05)
            deadline_s = DEADLINE_S / 2
            assert slowly.pieces * slowly.every_s > 2 * deadline_s + 0.5
            assert await with_fault(node, held, slowly, deadline_s) == (EXACT, 1)

    run(test())


# --- at the end of the stream ---------------------------------------------------------------------------


async def follow_with_fault(
    js: JetstreamClient, node: Node, held: Conversation, fault: Fault
) -> list[Record]:
    """Follow the stream, with a fault in the empty answer at its end; return what comes after it."""
    for attempt in range(ATTEMPTS):
        got = await _follow_once(js, node, held, fault, deadline_s=0.25 * 4**attempt)
        if got is not None:
            return got
    raise AssertionError(f"{fault} was not met in {ATTEMPTS} conversations")


async def _follow_once(
    js: JetstreamClient, node: Node, held: Conversation, fault: Fault, deadline_s: float
) -> list[Record] | None:
    """Return None if the fault was not met: a busy machine answered after the reader's deadline."""
    async with proxied(node.socket_port, fault) as proxy:
        links, reader = a_reader(proxy.port, held.wanted, deadline_s)
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(reader.__anext__())
            if not await proxy.passed_or_given_up(0, min(fault.at + 1, len(held.response))):
                first.cancel()  # it may look for the latest record anew, after those below
                links.close()
                return None
            ack = await js.publish("s.more", b"%r" % fault)
            second = await js.publish("s.more", b"and")
            got = [await first, await anext(reader)]
        links.close()
        assert [record.offset for record in got] == [ack.offset, second.offset]
        return got


@pytest.mark.parametrize(
    "one_in",
    [SELDOM, pytest.param(SAMPLED, marks=pytest.mark.slow("tests/integration/test_reader_faults.py"))],
)
def test_a_fault_in_an_empty_answer_at_the_end_loses_nothing(tmp_path: Path, one_in: int) -> None:
    """The reader waits at the end of the stream; the answer that says so arrives damaged, or half of it."""

    async def test() -> None:
        async with a_small_stream(tmp_path) as (js, node):
            # So many that their number has as many digits at the end of the test: bytes keep their places.
            await js.publish_all(("s.more", b"") for _ in range(1000))
            held = await an_empty_answer(node)
            start, header_end, end = held.frames()[FIRST_FETCH]
            assert header_end == end, "it has no body"
            chance = random.Random(6)
            faults: list[Fault] = [Cut(at) for at in range(start, end)]
            faults += [Flip(at, chance.choice(BITS)) for at in range(start, end)]
            faults += [flip for flip in held.flipped_digits() if flip.at >= start]
            for fault in faults[::one_in]:
                [first, _] = await follow_with_fault(js, node, held, fault)
                assert first.value == b"%r" % fault

    run(test())


def test_a_reader_that_has_waited_in_vain_bears_with_the_next_fault_as_long_as_with_the_first(
    tmp_path: Path,
) -> None:
    """Nothing is published between two faults that are further apart than it tries again."""

    async def test() -> None:
        async with a_small_stream(tmp_path) as (js, node):
            held = await an_empty_answer(node)
            end = held.frames()[FIRST_FETCH][2]
            async with proxied(node.socket_port, Cut(end - 1)) as proxy:
                links = NodeLinks(FixedAddresses([("127.0.0.1", proxy.port)]), UNHURRIED_S)
                settings = ReadSettings(FetchSettings(max_wait_ms=20), retry_s=RETRY_S)
                reader = BatchReader(links, held.wanted, settings)
                async with asyncio.TaskGroup() as tasks:
                    first = tasks.create_task(reader.__anext__())
                    await proxy.passed(0, end)
                    over_at = asyncio.get_running_loop().time() + RETRY_S
                    while asyncio.get_running_loop().time() < over_at:
                        await proxy.passed(1, proxy_bytes(proxy, 1) + 1)
                    proxy.connections[1].abort()
                    await proxy.passed(2, end)
                    ack = await js.publish("s.more", b"at last")
                assert first.result().column("offset").to_pylist() == [ack.offset]
            links.close()

    run(test())


async def an_empty_answer(node: Node) -> Conversation:
    """What the node says to a reader that waits at the end, up to its first answer without records."""
    wanted = ReadRange("s", start="latest", follow=True)
    async with proxied(node.socket_port, keeps_responses=True) as proxy:
        links, reader = a_reader(proxy.port, wanted)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(reader.__anext__())
            held = Conversation(wanted, (), b"")
            while len(held.response) == 0 or len(held.frames()) <= FIRST_FETCH:
                await proxy.passed(0, proxy_bytes(proxy) + 1)
                held = replace(held, response=proxy.response(0))
            waiting.cancel()
        links.close()
    return replace(held, response=held.response[: held.frames()[FIRST_FETCH][2]])


def proxy_bytes(proxy: TcpProxy, number: int = 0) -> int:
    """How much the node has said on a connection, if there is one."""
    return proxy.connections[number].response_bytes if len(proxy.connections) > number else 0
