"""A driver and its Java are killed at random moments: what it copies and archives is there, once."""

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow.dataset as ds
import pytest

import jetstream
from jetstream.client.blocking.client import BlockingClient
from tests.support.commands import up
from tests.support.pauses import pause_thread
from tests.support.spark_copying import Copying, DriverProcess

BATCH_RECORDS = 3_000
BATCHES_PER_KILL = 6
"""More than a driver gets through before it is killed."""
REST = b"." * 100


@dataclass(frozen=True)
class Progress:
    """How far the copying is, whoever does it."""

    copying: Copying
    js: BlockingClient

    def planned(self) -> int:
        """Batches whose offsets are in the checkpoint."""
        return self._files("offsets")

    def done(self) -> int:
        """Batches that Spark knows to be copied."""
        return self._files("commits")

    def arrived(self) -> int:
        """Records that are in the copy."""
        return self.js.streams.info(self.copying.copy).high_watermark

    def is_within_a_batch(self) -> bool:
        """Whether Spark will repeat a batch of which records are in the copy."""
        return self.arrived() > self.done() * BATCH_RECORDS

    def _files(self, name: str) -> int:
        directory = self.copying.checkpoint / name
        return sum(path.name.isdecimal() for path in directory.iterdir()) if directory.is_dir() else 0


def kill_within_a_batch(driver: DriverProcess, progress: Progress, chance: random.Random) -> None:
    """Kill it when records of a batch have arrived that is not done."""
    enough = progress.done() + chance.randrange(1, 3)
    while progress.done() < enough or not progress.is_within_a_batch():
        assert not driver.has_ended, driver.said
        pause_thread()
    driver.kill()


def kill_at_any_moment(driver: DriverProcess, progress: Progress, chance: random.Random) -> None:
    """Kill it when it has got a little further than its predecessor, and a moment after that."""
    grows = chance.choice((progress.planned, progress.done))
    enough = grows() + chance.randrange(1, 4)
    while grows() < enough:
        assert not driver.has_ended, driver.said
        pause_thread()
    for _ in range(chance.randrange(20)):
        pause_thread()
    driver.kill()


def kill_and_restart(directory: Path, kills: int, seed: int) -> None:
    """Kill it so often, every other time within a batch; let it go through; check what it has copied."""
    chance = random.Random(seed)
    records = (kills + 1) * BATCHES_PER_KILL * BATCH_RECORDS
    process, endpoints = up(directory / "node")
    with process, jetstream.connect_blocking(endpoints["nats"]) as js:
        js.streams.create("numbers", "numbers.*", partitions=2, partition_by="subject")
        js.streams.create("copies", "copies")
        js.publish_all((f"numbers.{number % 7}", b"%d %s" % (number, REST)) for number in range(records))
        copying = Copying(
            servers=endpoints["nats"],
            source="numbers",
            copy="copies",
            subject="copies",
            directory=str(directory),
            batch_records=BATCH_RECORDS,
        )
        progress = Progress(copying, js)
        within = 0
        for number in range(kills):
            kill = kill_at_any_moment if number % 2 else kill_within_a_batch
            with DriverProcess(copying) as driver:
                kill(driver, progress, chance)
            within += progress.is_within_a_batch()
        # What is left goes in one batch: how long it takes shows nothing.
        with DriverProcess(replace(copying, batch_records=records)) as driver:
            driver.finished()
        check_copies(js, records)
        check_archive(copying.archive, records)
        assert within, "no kill has left a batch half copied"


def check_copies(js: BlockingClient, records: int) -> None:
    """Every number is there, and once."""
    values = js.read("copies").to_table()["value"].to_pylist()
    numbers = [int(value.partition(b" ")[0]) for value in values if value is not None]
    assert len(numbers) == records
    assert set(numbers) == set(range(records))


def check_archive(root: Path, records: int) -> None:
    """Every record of both partitions is in a file of the archive, and once."""
    archive = ds.dataset(root, partitioning="hive").to_table(columns=["partition", "offset", "value"])
    places = archive.select(["partition", "offset"])
    assert archive.num_rows == records
    assert places.group_by(["partition", "offset"]).aggregate([]).num_rows == records
    numbers = [int(value.partition(b" ")[0]) for value in archive["value"].to_pylist() if value is not None]
    assert set(numbers) == set(range(records))


@pytest.mark.slow(
    "tests/property/test_spark_planning.py",
    "tests/crash/test_archive.py",
)
def test_two_kills_of_driver_and_java_lose_and_repeat_nothing(tmp_path: Path) -> None:
    kill_and_restart(tmp_path, kills=2, seed=1)


@pytest.mark.deep
def test_twenty_kills_of_driver_and_java_lose_and_repeat_nothing(tmp_path: Path) -> None:
    kill_and_restart(tmp_path, kills=20, seed=2)


@pytest.mark.deep
def test_two_drivers_on_one_checkpoint_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """Neither knows of the other: the one fails that finds a batch written down which it has planned too."""
    records = 100 * BATCH_RECORDS
    process, endpoints = up(tmp_path / "node")
    with process, jetstream.connect_blocking(endpoints["nats"]) as js:
        js.streams.create("numbers", "numbers.*", partitions=2, partition_by="subject")
        js.streams.create("copies", "copies")
        js.publish_all((f"numbers.{number % 7}", b"%d %s" % (number, REST)) for number in range(records))
        servers, directory = endpoints["nats"], str(tmp_path)
        copying = Copying(
            servers=servers,
            source="numbers",
            copy="copies",
            subject="copies",
            directory=directory,
            batch_records=BATCH_RECORDS,
            archives=False,
        )
        progress = Progress(copying, js)
        with DriverProcess(copying, "first") as first:
            while not progress.planned():
                assert not first.has_ended, first.said
                pause_thread()
            with DriverProcess(copying, "second") as second:
                failed = [driver for driver in (first, second) if driver.ended()]
        assert failed, "they did not meet"
        assert all("CONCURRENT_STREAM_LOG_UPDATE" in driver.said for driver in failed)
        with DriverProcess(replace(copying, batch_records=records)) as driver:
            driver.finished()
        check_copies(js, records)
