"""Where a range cannot be read where it lies, or is not what it should be there, the socket has it."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, OffsetOutOfRange
from envelope.limits import KIB, MIB
from envelope.types import Offset
from jetstream.client.read.read_range import ReadRange
from jetstream.log.disk.machine_id import machine_id
from jetstream.log.log import LogConfig
from jetstream.node.readers import dispatcher as socket_requests
from jetstream.protocol.responses import StoredRangeResponse
from tests.support.scene import open_files
from tests.support.short_circuit import SEGMENTS, Told, collect, fill, here, values, values_of
from tests.support.sockets import damage, run, serving


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told()
    monkeypatch.setattr(socket_requests, "stored_range", found)
    return found


# --- when it does not work out ------------------------------------------------------------------------------


class Copies:
    """What the server names instead: copies of its files, spoiled."""

    def __init__(self, directory: Path, spoil: Callable[[Path], None]) -> None:
        self.directory = directory / "copies"
        self.directory.mkdir()
        self.spoil = spoil
        self.made = 0

    def __call__(self, where: StoredRangeResponse) -> StoredRangeResponse:
        path = self.directory / str(self.made)
        self.made += 1
        shutil.copy(where.path, path)
        status = path.stat()
        changed = {"path": str(path), "device": status.st_dev, "inode": status.st_ino}
        self.spoil(path)
        return where.model_copy(update=changed)


def whole(path: Path) -> None:
    del path


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    """By one that says the same."""
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def cut(path: Path) -> None:
    os.truncate(path, 100)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def zeros(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(1000, len(content), 1000):
        content[place] ^= 1
    path.write_bytes(content)


SPOILED = (removed, replaced, cut, emptied, a_fifo, a_directory, zeros, flipped)


def test_copies_that_are_whole_would_be_read(tmp_path: Path, told: Told) -> None:
    """So it is the spoiling that the tests below see."""

    async def test() -> None:
        told.change = Copies(tmp_path, whole)
        async with here(tmp_path) as world:
            stored = fill(world.stream("s", SEGMENTS))
            assert await values(world.batches(ReadRange("s"))) == stored
            assert world.server.counters.bytes_sent < 100 * KIB

    run(test())


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("after", [0, 3])
def test_what_cannot_be_read_where_it_lies_comes_by_the_socket(
    tmp_path: Path, told: Told, spoil: Callable[[Path], None], after: int
) -> None:
    async def test() -> None:
        change = Copies(tmp_path, lambda path: None if change.made <= after else spoil(path))
        told.change = change
        async with here(tmp_path) as world:
            stored = fill(world.stream("s", SEGMENTS))
            assert await values(world.batches(ReadRange("s"), max_bytes=64 * KIB)) == stored
            assert world.server.counters.bytes_sent > 100 * KIB
            assert not open_files(change.directory)

    run(test())


def test_a_connection_whose_first_range_cannot_be_read_asks_for_no_other(tmp_path: Path, told: Told) -> None:
    async def test() -> None:
        told.change = lambda where: where.model_copy(update={"path": f"/nowhere{where.path}"})
        async with here(tmp_path) as world:
            stored = fill(world.stream("s", SEGMENTS))
            links = world.links()
            assert await values(world.batches(ReadRange("s"), links)) == stored
            count = told.count
            assert count > 0
            assert await values(world.batches(ReadRange("s"), links)) == stored
            assert told.count == count
            assert await values(world.batches(ReadRange("s"))) == stored
            assert told.count > count, "another connection tries for itself"

    run(test())


def test_a_connection_that_could_read_once_asks_again(tmp_path: Path, told: Told) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            stored = fill(world.stream("s", SEGMENTS))
            links = world.links()
            assert await values(world.batches(ReadRange("s"), links)) == stored
            told.change = lambda where: where.model_copy(update={"inode": where.inode + 1})
            assert await values(world.batches(ReadRange("s"), links)) == stored
            told.change = lambda where: where
            count, sent = told.count, world.server.counters.bytes_sent
            assert await values(world.batches(ReadRange("s"), links)) == stored
            assert told.count > count
            assert world.server.counters.bytes_sent - sent < 100 * KIB

    run(test())


@pytest.mark.parametrize("shift", [-1, 1, 7, 4096])
def test_other_bytes_of_the_same_file_are_not_taken_for_the_range(
    tmp_path: Path, told: Told, shift: int
) -> None:
    async def test() -> None:
        told.change = lambda where: where.model_copy(update={"position": max(0, where.position + shift)})
        async with here(tmp_path) as world:
            stored = fill(world.stream("s", SEGMENTS))
            assert await values(world.batches(ReadRange("s", start=0), max_bytes=64 * KIB)) == stored

    run(test())


def test_batches_of_another_range_are_not_taken_for_it(tmp_path: Path, told: Told) -> None:
    """Their checksums are right, their offsets are not: the first range's file in the place of all others."""

    async def test() -> None:
        first: list[StoredRangeResponse] = []

        def change(where: StoredRangeResponse) -> StoredRangeResponse:
            first.append(where)
            return first[0]

        told.change = change
        async with here(tmp_path) as world:
            stored = fill(world.stream("s", SEGMENTS))
            assert await values(world.batches(ReadRange("s"), max_bytes=64 * KIB)) == stored
            assert len(first) > 1

    run(test())


def test_batches_of_another_epoch_are_not_taken_for_it(tmp_path: Path, told: Told) -> None:
    """As after an unclean election: the file has been cut, and has other records at the same offsets."""

    async def test() -> None:
        async with serving(tmp_path / "other", machine=machine_id()) as other, here(tmp_path) as world:
            stored = fill(world.stream("s"), batches=20)
            changed = other.stream("s")
            changed.reign(2)
            fill(changed, seed=2, batches=20)
            (file,) = (tmp_path / "other").rglob("*.arrows")
            status = file.stat()
            told.change = lambda where: where.model_copy(
                update={
                    "path": str(file), "device": status.st_dev, "inode": status.st_ino,
                    "length": min(where.length, status.st_size - where.position),
                }
            )  # fmt: skip
            assert await values(world.batches(ReadRange("s"))) == stored
            assert told.count > 0

    run(test())


def test_records_that_retention_has_removed_meanwhile_are_out_of_range(tmp_path: Path) -> None:
    async def test() -> None:
        async with here(tmp_path) as world:
            stream = world.stream("s", SEGMENTS)
            stored = fill(stream)
            reader = world.batches(ReadRange("s"), max_bytes=32 * KIB)
            seen = values_of(await anext(reader))
            stream.log.truncate_before(Offset(len(stored) - 1), stream.high_watermark)
            with pytest.raises(OffsetOutOfRange):
                await collect(reader, seen)
            assert seen == stored[: len(seen)]
            assert reader.next_offset == len(seen)
            gone = [path for path in open_files(tmp_path) if path.endswith("(deleted)")]
            assert not gone, "no reader keeps the disk from being given back"

    run(test())


# --- damage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_verified", [True, False])
def test_a_flipped_bit_anywhere_is_never_a_wrong_record(tmp_path: Path, is_verified: bool) -> None:
    """Neither where the node has written the file itself nor where it would check it before it sends it."""

    async def test() -> None:
        async with here(tmp_path) as world:
            stream = world.stream("s", LogConfig(segment_bytes=MIB))
            stored = fill(stream, batches=12)
            (file,) = (tmp_path / "data" / "s").glob("*.arrows")
            chance = random.Random(3)
            for place in sorted(chance.randrange(file.stat().st_size) for _ in range(12)):
                if not is_verified:
                    stream.log.close(clean=True)
                    stream = world.stream("s")
                damage(file, place)
                seen: list[bytes] = []
                reader = world.batches(ReadRange("s"), max_bytes=64 * KIB)
                told_before = world.server.counters.short_circuit_bytes
                with pytest.raises(CorruptDataError):
                    await collect(reader, seen)
                assert seen == stored[: len(seen)]
                assert reader.next_offset == len(seen)
                assert world.server.counters.short_circuit_bytes > told_before
                damage(file, place)
                if not is_verified:
                    stream.log.close(clean=True)
                    stream = world.stream("s")
                assert await values(world.batches(ReadRange("s"))) == stored

    run(test())
