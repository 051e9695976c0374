"""A node that ends and comes back under fifty readers and a publisher: each goes on at its exact record."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

import jetstream
from jetstream import JetstreamClient
from jetstream.client.read.reader import RecordReader
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.nodes import WAIT_SECONDS, NodeProcess, request, run
from tests.support.publishers import Witness

CLIENTS: Final = 10
BEFORE: Final = 1000
"""Records that are there when the readers begin."""
HELD_AT: Final = 300
"""Where the readers that are behind wait until the node has been away."""
ROUNDS: Final = 2
PER_ROUND: Final = 600
TOTAL: Final = BEFORE + ROUNDS * PER_ROUND


@dataclass
class Readers:
    """Two kinds of readers, and what each has got, as (offset, value)."""

    tails: list[list[tuple[int, bytes | None]]] = field(default_factory=list)
    behind: list[list[tuple[int, bytes | None]]] = field(default_factory=list)
    advanced: asyncio.Event = field(default_factory=asyncio.Event)
    node_was_away: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, js: JetstreamClient, tasks: asyncio.TaskGroup) -> None:
        """Have one of each kind read with ``js``."""
        for kind, start, hold_at in ((self.tails, BEFORE, TOTAL), (self.behind, 0, HELD_AT)):
            got: list[tuple[int, bytes | None]] = []
            kind.append(got)
            # So little at a time that what is behind is not all in the client's memory already.
            reader = js.read(
                "numbers", start=start, end=TOTAL, follow=True, max_bytes=4096, prefetch_bytes=8192
            )
            tasks.create_task(self._read(reader, got, hold_at))

    async def _read(self, reader: RecordReader, got: list[tuple[int, bytes | None]], hold_at: int) -> None:
        async for record in reader:
            got.append((record.offset, record.value))
            self.advanced.set()
            if len(got) == hold_at:
                await self.node_was_away.wait()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds of what was got."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():
                self.advanced.clear()
                await self.advanced.wait()


async def restart_under_readers(directory: Path, end: Callable[[NodeProcess], object]) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedNatsServer(directory / "nats"))
        node = NodeProcess(directory / "data", server.url)
        node.start()
        stack.callback(node.kill)
        witness = Witness("numbers.all", server.url)
        await witness.open()
        stack.push_async_callback(witness.close)
        assert witness._client is not None
        fields = {"name": "numbers", "subject": "numbers.>", "segment_bytes": 1 << 18}
        assert "error" not in await request(witness._client, "stream.create", **fields)
        for _ in range(20):
            await witness.publish(BEFORE // 20)
            await witness.wait_for_acks(witness.published)
        clients = [await stack.enter_async_context(jetstream.connect(server.url)) for _ in range(CLIENTS)]
        readers = Readers()
        async with asyncio.TaskGroup() as tasks:
            for number in range(25):
                readers.begin(clients[number % CLIENTS], tasks)
            await readers.until(lambda: all(len(got) == HELD_AT for got in readers.behind))
            for number in range(ROUNDS):
                await one_round(witness, readers, number, lambda: end(node))
                node.start()
                await witness.retry_until_acked()
                readers.node_was_away.set()
        await verify(clients[0], witness, readers)


async def one_round(witness: Witness, readers: Readers, number: int, end: Callable[[], object]) -> None:
    """Publish, and end the node once some is acked and every tail has got some: the rest is under way."""
    seen = [len(got) for got in readers.tails]
    await witness.publish(PER_ROUND)
    await witness.wait_for_acks(BEFORE + number * PER_ROUND + 1)
    await readers.until(
        lambda: all(len(got) > before for got, before in zip(readers.tails, seen, strict=True))
    )
    await asyncio.to_thread(end)


async def verify(js: JetstreamClient, witness: Witness, readers: Readers) -> None:
    """Everybody has got what is stored, and what is stored is what was acked."""
    stored = [(record.offset, record.value) async for record in js.read("numbers")]
    assert [offset for offset, _ in stored] == list(range(TOTAL))
    assert {int(value or b"-1"): offset for offset, value in stored} == witness.acked
    assert witness.contradictions == []
    assert len(readers.tails) == len(readers.behind) == 25
    for got in readers.behind:
        assert got == stored
    for got in readers.tails:
        assert got == stored[BEFORE:]


@pytest.mark.slow(
    "tests/integration/test_reader_faults.py::test_a_connection_that_is_cut_before_any_byte_is_resumed_there",
    "tests/integration/test_cluster_reads.py::test_a_reader_that_catches_up_goes_on_elsewhere_when_its_node_is_killed",
)
@pytest.mark.parametrize("end", [NodeProcess.kill, NodeProcess.stop], ids=["killed", "stopped"])
def test_fifty_readers_go_on_at_their_record_when_the_node_comes_back(
    tmp_path: Path, end: Callable[[NodeProcess], object]
) -> None:
    run(restart_under_readers(tmp_path, end))
