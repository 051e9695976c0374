"""SIGKILL at random points under load, real processes: nothing acked is lost, nothing is stored twice."""

import random
from pathlib import Path

import pytest

import jetstream
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.inspection import inspect_stream
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from tests.support.nodes import NodeProcess, request, run
from tests.support.publishers import Witness


async def kill_and_restart(directory: Path, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    async with EmbeddedNatsServer(directory / "nats") as server:
        node = NodeProcess(directory / "data", server.url)
        node.start()
        witness = Witness("numbers.all", server.url)
        await witness.open()
        try:
            assert witness._client is not None
            created = await request(
                witness._client, "stream.create", name="numbers", subject="numbers.>", segment_bytes=1 << 18
            )
            assert "error" not in created, created
            for _ in range(rounds):
                before = len(witness.acked)
                await witness.publish(1000)
                await witness.wait_for_acks(before + chance.randrange(1, 900))
                node.kill()
                node.start()
                await witness.retry_until_acked()
            await verify(witness, node)
        finally:
            await witness.close()
            node.stop()
    verify_files(directory / "data")


async def verify(witness: Witness, node: NodeProcess) -> None:
    """Every value once, at the offset it was acked with, offsets dense."""
    stored: dict[int, int] = {}
    expected_offset = 0
    async with jetstream.connect(witness.url) as js:
        async for record in js.read("numbers", start="earliest"):
            assert record.offset == expected_offset
            expected_offset += 1
            assert record.value is not None
            number = int(record.value)
            assert number not in stored, f"value {number} is at {stored[number]} and at {record.offset}"
            stored[number] = record.offset
    assert witness.contradictions == []
    assert stored == witness.acked
    assert len(stored) == witness.published


def verify_files(data: Path) -> None:
    """The log is legal, byte by byte."""
    disk = OsDisk(data)
    directories = [path.relative_to(data) for path in (data / "streams").iterdir() if path.is_dir()]
    assert len(directories) == 1
    for directory in directories:
        report = inspect_stream(disk, str(directory))
        assert report.problems == ()


@pytest.mark.slow(
    "tests/crash/test_power_loss.py",
    "tests/integration/test_reader_faults.py",
)
def test_ten_kills_under_load_lose_and_repeat_nothing(tmp_path: Path) -> None:
    run(kill_and_restart(tmp_path, rounds=10, seed=1))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_kills_under_load_lose_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    run(kill_and_restart(tmp_path, rounds=10, seed=seed))
