"""Reading from so many offsets before the end, or from so long ago: over real sockets, from real logs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from envelope.types import Offset
from jetstream.client.read.read_range import ReadRange
from jetstream.client.read.reader import RecordReader
from tests.support.sockets import run, serving


async def offsets(reader: RecordReader) -> list[int]:
    return [record.offset async for record in reader]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ReadRange("s", start=-3), range(17, 20)),
        (ReadRange("s", start=-20), range(20)),
        (ReadRange("s", start=-(2**63 - 1)), range(20)),
        (ReadRange("s", end=-3), range(17)),
        (ReadRange("s", end=-21), range(0)),
        (ReadRange("s", start=-8, end=-3), range(12, 17)),
        (ReadRange("s", start=-8, end=15), range(12, 15)),
        (ReadRange("s", start=-3, end=-8), range(0)),
        (ReadRange("s", start=-8, end=-3, follow=True), range(12, 17)),
        (ReadRange("s", start=-8, end=15, follow=True), range(12, 15)),
        (ReadRange("s", start=timedelta.min), range(20)),
        (ReadRange("s", start=timedelta(hours=-1)), range(0)),
    ],
)
def test_a_relative_range_is_read_exactly(tmp_path: Path, wanted: ReadRange, expected: range) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            world.stream("s").add(*([b"v"] * 5 for _ in range(4)))
            assert await offsets(world.records(wanted)) == list(expected)

    run(test())


@pytest.mark.parametrize("follow", [False, True])
def test_so_long_ago_is_counted_from_now(tmp_path: Path, follow: bool) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            now = datetime.now(UTC)
            for hours in (3, 2, 1, 0):
                stream.append([b"v"], now - timedelta(hours=hours))
            stream.commit()
            between = ReadRange("s", start=timedelta(hours=-2.5), end=timedelta(hours=-0.5), follow=follow)
            assert await offsets(world.records(between)) == [1, 2]
            assert (await anext(world.records(ReadRange("s", start=timedelta(hours=-0.5))))).offset == 3

    run(test())


def test_so_many_before_the_end_are_those_that_are_kept_and_committed(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            stream = world.stream("s")
            stream.add(*([b"v"] * 5 for _ in range(4)))
            stream.log.truncate_before(Offset(7), stream.high_watermark)
            stream.append([b"uncommitted"])
            assert await offsets(world.records(ReadRange("s", start=-3))) == [17, 18, 19]
            assert await offsets(world.records(ReadRange("s", start=-15))) == list(range(7, 20))
            assert await offsets(world.records(ReadRange("s", end=-15))) == []
            follower = world.records(ReadRange("s", start=-1, follow=True))
            assert (await anext(follower)).offset == 19
            stream.commit()
            assert (await anext(follower)).value == b"uncommitted"

    run(test())
