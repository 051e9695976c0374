"""Readers that have small batches put together see the same records, in fewer batches."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError
from envelope.limits import MIB
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_access import FixedAddresses
from jetstream.client.read.fetch_pipeline import FetchSettings
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import BatchReader, ReadSettings
from jetstream.protocol.requests import Fetch
from jetstream.protocol.responses import FetchResponse
from tests.support.forged_responses import a_batch, a_response, listening
from tests.support.sockets import WAIT_SECONDS, World, run, serving


def merging(world: World, rows: int, wanted: ReadRange, max_bytes: int = MIB) -> BatchReader:
    return BatchReader(world.links(), wanted, ReadSettings(FetchSettings(max_bytes), batch_rows=rows))


async def sizes(reader: BatchReader) -> list[int]:
    """How many records each batch has; the offsets are checked on the way."""
    found, offset = [], reader.start_offset or 0
    async for batch in reader:
        assert batch.column(0).to_pylist() == list(range(offset, offset + batch.num_rows))
        offset += batch.num_rows
        assert reader.next_offset == offset
        found.append(batch.num_rows)
    return found


@pytest.mark.parametrize(
    ("rows", "merged"),
    [
        (0, [1, 2, 9, 1, 1, 1, 1, 9, 1]),
        (1, [1, 2, 9, 1, 1, 1, 1, 9, 1]),
        (3, [3, 9, 3, 1, 9, 1]),
        (9, [3, 9, 4, 9, 1]),
        (100, [26]),
    ],
)
def test_small_batches_are_put_together_and_large_ones_stay(
    tmp_path: Path, rows: int, merged: list[int]
) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            world.stream("s").add(*([b"v"] * size for size in (1, 2, 9, 1, 1, 1, 1, 9, 1)))
            assert await sizes(merging(world, rows, ReadRange("s"))) == merged
            assert sum(await sizes(merging(world, rows, ReadRange("s", end=20)))) == 20
            assert sum(await sizes(merging(world, rows, ReadRange("s"), max_bytes=1))) == 26

    run(test())


def test_the_smallest_are_decoded_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            stream = world.stream("s")
            stream.has_headers = False
            stream.add(*([b"v"] for _ in range(1500)))
            assert await sizes(merging(world, 0, ReadRange("s"), 4 * MIB)) == [1024, 476]
            assert await sizes(merging(world, 2000, ReadRange("s"), 4 * MIB)) == [1500]
            inner = merging(world, 0, ReadRange("s", start=7, end=1100), 4 * MIB)
            assert [batch.column(0)[0].as_py() async for batch in inner] == [7, 1031]
            assert inner.next_offset == 1100
            # Record N came at second N + 1.
            moment = datetime.fromtimestamp(600, UTC)
            assert sum(await sizes(merging(world, 0, ReadRange("s", end=moment), 4 * MIB))) == 599

    run(test())


def test_a_few_large_records_are_not_copied_together(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path) as world:
            world.stream("s").add(*([bytes(size)] for size in (10, MIB, 10, 10, MIB, MIB)))
            reader = merging(world, 100, ReadRange("s"), max_bytes=16 * MIB)
            assert await sizes(reader) == [1, 1, 2, 1, 1]

    run(test())


@pytest.mark.parametrize("headers", [True, False])
def test_what_comes_before_damage_is_handed_out_first(headers: bool) -> None:
    body = bytearray(b"".join(a_batch(start, 1, headers=headers) for start in range(100)))
    body[-1] ^= 1

    async def test() -> None:
        def answer(fetch: Fetch, offset: int) -> tuple[FetchResponse, bytes]:
            return a_response(fetch, offset, 100), bytes(body if offset == 0 else body[-len(body) // 100 :])

        async with listening(answer) as address:
            links = NodeLinks(FixedAddresses([address]), WAIT_SECONDS)
            reader = BatchReader(links, ReadRange("s"), ReadSettings(batch_rows=1000))
            batch = await anext(reader)
            assert batch.column(0).to_pylist() == list(range(99))
            with pytest.raises(CorruptDataError, match="batch 99"):
                await anext(reader)
            links.close()

    run(test())
