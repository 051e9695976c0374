"""The disk fills up while the node runs: typed refusals, nothing half stored, and on it goes with space."""

import asyncio
import contextlib
import os
import resource
import subprocess
from collections.abc import Coroutine, Iterator
from pathlib import Path

import nats
import pytest
from nats.js.api import PubAck
from nats.js.errors import ServiceUnavailableError

import jetstream
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.nodes import WAIT_SECONDS, NodeProcess, request, run
from tests.support.pauses import pause

VALUE = b"v" * 8192


async def fill(url: str) -> int:
    """Publish until the first refusal; returns how many were acked."""
    async with await nats.connect(url) as client:
        js = client.jetstream()
        for acked in range(10_000):
            refusal = await outcome(js.publish("numbers.one", VALUE, timeout=10))
            if refusal is not None:
                assert refusal.err_code == 10047
                return acked
    raise AssertionError("the disk never filled up")


async def outcome(publishing: Coroutine[None, None, PubAck]) -> ServiceUnavailableError | None:
    try:
        await publishing
    except ServiceUnavailableError as error:
        return error
    return None


async def check(url: str, expected: int) -> None:
    async with jetstream.connect(url) as js:
        offsets = [record.offset async for record in js.read("numbers", start="earliest")]
    assert offsets == list(range(expected))


def test_a_file_size_limit_refuses_and_then_resumes(tmp_path: Path) -> None:
    """The kernel's own EFBIG, set and lifted from outside on the running process."""

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            node = NodeProcess(tmp_path / "data", server.url)
            node.start()
            try:
                async with await nats.connect(server.url) as client:
                    await request(client, "stream.create", name="numbers", subject="numbers.>")
                    resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
                    acked = await fill(server.url)
                    assert 5 < acked < 50
                    await check(server.url, acked)
                    resource.prlimit(
                        node.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                    )
                    ack = await client.jetstream().publish("numbers.one", VALUE)
                    assert ack.seq == acked + 1
                    await check(server.url, acked + 1)
                assert node.stop() == 0
            finally:
                node.kill()

    run(scenario())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB, where this user may mount one."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_file_system_refuses_and_then_resumes(tmp_path: Path, small_disk: Path) -> None:
    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            node = NodeProcess(small_disk / "data", server.url)
            node.start()
            try:
                ballast = small_disk / "ballast"
                async with await nats.connect(server.url) as client:
                    await request(client, "stream.create", name="numbers", subject="numbers.>")
                    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_bsize
                    ballast.write_bytes(bytes(free - 400_000))
                    acked = await fill(server.url)
                    await check(server.url, acked)
                    ballast.unlink()
                    ack = await client.jetstream().publish("numbers.one", VALUE)
                    assert ack.seq == acked + 1
                node.kill()
                node.start()
                await check(server.url, acked + 1)
                assert node.stop() == 0
            finally:
                node.kill()

    run(scenario())


def test_truncation_to_the_end_frees_a_file_system_without_a_free_byte(
    tmp_path: Path, small_disk: Path
) -> None:
    """All is in the active segment, whose index goes first: what is put on record takes a little space."""

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            node = NodeProcess(small_disk / "data", server.url)
            node.start()
            try:
                async with await nats.connect(server.url) as client:
                    await request(client, "stream.create", name="numbers", subject="numbers.>")
                    await client.jetstream().publish("numbers.one", VALUE)
                    async with asyncio.timeout(WAIT_SECONDS):
                        while not has_index(small_disk):
                            await pause()
                    acked = 1 + await fill(server.url)
                    fill_up(small_disk / "ballast")
                    done = await request(client, "stream.truncate", name="numbers", before=acked)
                    assert done.get("log_start_offset") == acked, done
                    assert done["freed_bytes"] > acked * len(VALUE)
                    for sequence in range(acked + 1, acked + 11):
                        assert (await client.jetstream().publish("numbers.one", VALUE)).seq == sequence
                assert node.stop() == 0
            finally:
                node.kill()

    run(scenario())


def has_index(data: Path) -> bool:
    """Return whether the stream's active segment has an index file yet."""
    return any("numbers" in str(path) for path in data.rglob("*.index"))


def fill_up(ballast: Path) -> None:
    """Take what is left of a file system."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range(1024):
            file.write(bytes(4096))
