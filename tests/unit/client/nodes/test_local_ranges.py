"""Files of the node, read where they lie: the bytes that are meant, or none."""

import asyncio
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.limits import KIB
from jetstream.client.nodes.local_ranges import LocalRanges, RangeAway
from jetstream.protocol.responses import StoredRangeResponse
from tests.support.example_counts import examples
from tests.support.held_threads import HeldThreads
from tests.support.page_cache import empty_page_cache
from tests.support.scene import open_files
from tests.support.sockets import run, until

CONTENT = os.urandom(300 * KIB)
PAGE = os.sysconf("SC_PAGESIZE")


def a_file(directory: Path, content: bytes = CONTENT) -> Path:
    path = directory / "segment"
    path.write_bytes(content)
    return path


def told(path: Path, position: int = 0, length: int | None = None) -> StoredRangeResponse:
    """What a node says of ``path``."""
    status = path.lstat()
    length = status.st_size - position if length is None else length
    return StoredRangeResponse(
        path=str(path), device=status.st_dev, inode=status.st_ino, position=position, length=length
    )


def dropped(path: Path, start: int, length: int) -> None:
    """Take pages out of the page cache, as far as the kernel follows."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), start, length, os.POSIX_FADV_DONTNEED)


async def read(ranges: LocalRanges, where: StoredRangeResponse) -> bytes:
    room = memoryview(bytearray(where.length))
    await ranges.read(where, room)
    return bytes(room)


async def read_or_away(ranges: LocalRanges, where: StoredRangeResponse) -> bytes | RangeAway:
    try:
        return await read(ranges, where)
    except RangeAway as away:
        return away


async def held(
    group: asyncio.TaskGroup, ranges: LocalRanges, where: StoredRangeResponse, threads: HeldThreads
) -> asyncio.Task[bytes | RangeAway]:
    """A read that waits for its thread, which is held; nothing is in the page cache."""
    given_before = threads.given
    reading = group.create_task(read_or_away(ranges, where))
    await until(lambda: threads.given > given_before)
    return reading


async def with_threads() -> HeldThreads:
    threads = HeldThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    return threads


# --- what is there ------------------------------------------------------------------------------------------


def test_what_is_in_the_page_cache_is_read_without_a_thread(tmp_path: Path) -> None:
    async def test() -> None:
        threads, path = await with_threads(), a_file(tmp_path)
        try:
            with path.open("rb") as file:
                os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system cannot tell")
        assert await read(LocalRanges(usable=True), told(path, 7, 200_000)) == CONTENT[7:200_007]
        assert threads.given == 0

    run(test())


def test_what_is_not_in_the_page_cache_is_read_by_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        threads, path = await with_threads(), a_file(tmp_path)
        assert await read(LocalRanges(usable=True), told(path, 7, 200_000)) == CONTENT[7:200_007]
        assert threads.given == 1
        assert not open_files(tmp_path)

    run(test())


PAGES = len(CONTENT) // PAGE
RUNS = st.lists(st.tuples(st.integers(0, PAGES), st.integers(1, PAGES)), max_size=4)


@settings(max_examples=examples(60))
@given(st.integers(0, len(CONTENT) - 1), st.integers(1, len(CONTENT)), RUNS)
def test_any_range_is_read_whatever_of_it_is_in_the_page_cache(
    position: int, length: int, runs: list[tuple[int, int]]
) -> None:
    length = min(length, len(CONTENT) - position)

    async def test(path: Path) -> bytes:
        for start, pages in runs:
            dropped(path, start * PAGE, pages * PAGE)
        return await read(LocalRanges(usable=True), told(path, position, length))

    with TemporaryDirectory() as directory:
        assert run(test(a_file(Path(directory)))) == CONTENT[position : position + length]
        assert not open_files(Path(directory))


# --- what is not --------------------------------------------------------------------------------------------


def a_device(path: Path) -> StoredRangeResponse:
    del path
    return told(Path("/dev/zero"), 0, 20 * KIB)


def a_directory(path: Path) -> StoredRangeResponse:
    path.unlink()
    path.mkdir()
    return told(path, 0, 1)


def a_fifo(path: Path) -> StoredRangeResponse:
    path.unlink()
    os.mkfifo(path)
    return told(path, 0, 20 * KIB)


def a_socket(path: Path) -> StoredRangeResponse:
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    return told(path, 0, 20 * KIB)


def a_link(path: Path) -> StoredRangeResponse:
    where = told(path)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))
    return where


def a_link_by_itself(path: Path) -> StoredRangeResponse:
    a_link(path)
    return told(path, 0, 1)


def a_copy(path: Path) -> StoredRangeResponse:
    where = told(path)
    shutil.copy(path, path.with_name("copy"))
    path.with_name("copy").rename(path)
    return where


def another_device(path: Path) -> StoredRangeResponse:
    where = told(path)
    return where.model_copy(update={"device": where.device + 1})


def removed(path: Path) -> StoredRangeResponse:
    where = told(path)
    path.unlink()
    return where


def shorter(path: Path) -> StoredRangeResponse:
    where = told(path)
    os.truncate(path, len(CONTENT) - 1)
    return where


def beyond_its_end(path: Path) -> StoredRangeResponse:
    return told(path, len(CONTENT), 1)


def far_beyond_its_end(path: Path) -> StoredRangeResponse:
    return told(path, (1 << 63) - 1, 1 << 16)


def below_a_file(path: Path) -> StoredRangeResponse:
    return told(path).model_copy(update={"path": f"{path}/segment"})


def with_a_nul(path: Path) -> StoredRangeResponse:
    """What no response can have: it is refused as it arrives."""
    return told(path).model_copy(update={"path": f"{path}\0"})


AWAY = (
    *(a_device, a_directory, a_fifo, a_socket, a_link, a_link_by_itself, a_copy, another_device, removed),
    *(shorter, beyond_its_end, far_beyond_its_end, below_a_file, with_a_nul),
)


@pytest.mark.parametrize("make", AWAY, ids=lambda make: make.__name__)
def test_nothing_is_read_but_the_file_that_is_meant(
    tmp_path: Path, make: Callable[[Path], StoredRangeResponse]
) -> None:
    async def test() -> None:
        threads = await with_threads()
        where = make(a_file(tmp_path))
        ranges = LocalRanges(usable=True)
        room = bytearray(where.length)
        with pytest.raises(RangeAway):
            await ranges.read(where, memoryview(room))
        assert not any(room)
        assert threads.given == 0, "it is known before anything is read"
        assert not ranges.usable
        assert not open_files(tmp_path)

    run(test())


@pytest.mark.parametrize("spoil", [shorter, removed, a_copy], ids=lambda spoil: spoil.__name__)
def test_what_changes_before_the_thread_begins_is_noticed_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], StoredRangeResponse]
) -> None:
    empty_page_cache(monkeypatch)

    async def test() -> None:
        threads, path = await with_threads(), a_file(tmp_path)
        ranges, where = LocalRanges(usable=True), told(path)
        threads.let_go.clear()
        async with asyncio.TaskGroup() as group:
            reading = await held(group, ranges, where, threads)
            spoil(path)
            threads.let_go.set()
        assert isinstance(reading.result(), RangeAway)
        assert not open_files(tmp_path)

    run(test())


# --- whether to ask again -----------------------------------------------------------------------------------


def test_what_has_never_worked_is_not_tried_again(tmp_path: Path) -> None:
    async def test() -> None:
        path = a_file(tmp_path)
        ranges = LocalRanges(usable=True)
        with pytest.raises(RangeAway):
            await read(ranges, another_device(path))
        assert not ranges.usable

    run(test())


def test_what_has_worked_once_is_tried_again_after_a_failure(tmp_path: Path) -> None:
    async def test() -> None:
        path = a_file(tmp_path)
        ranges = LocalRanges(usable=True)
        assert await read(ranges, told(path)) == CONTENT
        for _ in range(3):
            with pytest.raises(RangeAway):
                await read(ranges, another_device(path))
            assert ranges.usable
        assert await read(ranges, told(path)) == CONTENT

    run(test())


# --- whoever is cancelled -----------------------------------------------------------------------------------


@pytest.mark.parametrize("has_begun", [True, False])
def test_a_read_that_is_cancelled_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_begun: bool
) -> None:
    """The thread may be at it by then, or have other work before it and never come to it."""
    empty_page_cache(monkeypatch)

    async def test() -> None:
        threads, path = await with_threads(), a_file(tmp_path)
        ranges = LocalRanges(usable=True)
        threads.let_go.clear()
        loop = asyncio.get_running_loop()
        others = [] if has_begun else [loop.run_in_executor(None, lambda: None)]
        async with asyncio.TaskGroup() as group:
            reading = await held(group, ranges, told(path), threads)
            if has_begun:
                await until(lambda: threads.begun == threads.given)
            reading.cancel()
        assert reading.cancelled()
        threads.let_go.set()
        await asyncio.gather(*others, loop.run_in_executor(None, lambda: None))
        assert not open_files(tmp_path)
        assert ranges.usable
        assert await read(ranges, told(path)) == CONTENT

    run(test())
