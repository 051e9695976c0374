"""Reading what is not in memory: the event loop reads no file for it, the reader threads do."""

import threading
from datetime import UTC, datetime
from pathlib import Path

from envelope.types import Offset
from jetstream.client.read.read_range import ReadRange
from jetstream.log.disk.os_disk import OsDisk, OsFile
from jetstream.log.disk.port import File
from jetstream.log.log import LogConfig
from jetstream.log.segments.loaded_indexes import LOADED_MAX
from tests.support.sockets import World, run, serving, until


class WatchedFile(OsFile):
    """Tells its disk who reads; waits at the disk's gate before."""

    def __init__(self, file: File, disk: "WatchedDisk") -> None:
        super().__init__(file.fileno(), str(disk.root))
        self._disk = disk

    def read(self, position: int, length: int) -> bytes:
        self._disk.readers.add(threading.get_ident())
        self._disk.gate.wait()
        return super().read(position, length)


class WatchedDisk(OsDisk):
    """Knows which threads have read, and lets them only through an open gate."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.root = root
        self.readers: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str) -> File:
        return WatchedFile(super().open(path), self)


def watch(world: World) -> WatchedDisk:
    """Have the world's logs that are opened from now on lie on a watched disk."""
    world.disk.close()
    world.disk = disk = WatchedDisk(world.root)
    return disk


async def read_all(world: World) -> list[int]:
    return [record.offset async for record in world.records(ReadRange("s"))]


def test_indexes_that_are_not_in_memory_are_read_on_threads_only(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            disk = watch(world)
            config = LogConfig(segment_bytes=64 * 1024)
            stream = world.stream("s", config)
            stream.add(*([b"x" * 10_000] * 3 for _ in range(40)))
            assert len(stream.log.reader.segments) > 2 * LOADED_MAX
            stream.log.close()
            world.stream("s", config)
            disk.readers.clear()
            assert await read_all(world) == list(range(120))
            verified = world.server.counters.ranges_verified
            assert await read_all(world) == list(range(120))
            assert world.server.counters.ranges_verified == verified, "each range once"
            second_4 = datetime.fromtimestamp(4, UTC)
            assert (await anext(world.records(ReadRange("s", start=second_4)))).offset == 3
            assert disk.readers
            assert threading.get_ident() not in disk.readers

    run(test(), loop)


def test_a_commit_while_a_thread_reads_the_index_is_not_missed(tmp_path: Path, loop: str) -> None:
    async def test() -> None:
        async with serving(tmp_path / "data") as world:
            disk = watch(world)
            config = LogConfig(segment_bytes=1)
            stream = world.stream("s", config)
            stream.add([b"a", b"b"], [b"c"], [b"d"])
            stream.log.close()
            stream = world.stream("s", config)
            stream.high_watermark = Offset(1)  # inside the first batch: nothing whole is committed
            disk.readers.clear()
            disk.gate.clear()
            peer = await world.peer()
            try:
                await peer.request(op="fetch", id=1, stream="s", offset=0, max_bytes=1, max_wait_ms=30_000)
                await until(lambda: bool(disk.readers))
                stream.commit()
            finally:
                disk.gate.set()
            header, _ = await peer.response()
            assert (header["start_offset"], header["next_offset"], header["high_watermark"]) == (0, 2, 4)
            assert world.server.counters.fetches_parked == 0
            peer.close()

    run(test(), loop)
