"""The processes of an archive, Python and Java, are killed at moments that the seed draws."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.pipelines.backfill import archived, manifest_of
from tests.spark.conftest import Endpoints
from tests.support.commands import REPOSITORY
from tests.support.pauses import pause_thread
from tests.support.spark_archives import all_places, places, publish, run, settings_of
from tests.support.spark_sessions import session_settings

RECORDS = 1_500
CHANGES_MAX = 30
"""Of the files of an archive that takes in so many records, at least; about ten for each micro-batch."""


@pytest.mark.deep
@pytest.mark.parametrize("kills", [2, 20])
def test_every_record_is_archived_once_whenever_driver_and_java_are_killed(
    spark: SparkSession, endpoints: Endpoints, js: BlockingClient, tmp_path: Path, kills: int
) -> None:
    chance = random.Random(kills)
    stream = f"killed-{kills}"
    js.streams.create(stream, f"{stream}.>")
    root = tmp_path / "archive"
    root.mkdir()
    for kill in range(kills):
        publish(js, stream, range(kill * RECORDS, (kill + 1) * RECORDS))
        kill_at_a_change(root, arguments(endpoints, stream, root, tmp_path), chance.randint(1, CHANGES_MAX))
    options = {"servers": endpoints.servers, "stream": stream}
    run(spark, settings_of(root), options)
    expected = all_places(js, stream, {0: stream})
    assert expected.total() == kills * RECORDS
    assert places(archived(spark, root, manifest_of(root))) == expected
    assert places(spark.read.parquet(str(root))) == expected


def arguments(endpoints: Endpoints, stream: str, root: Path, directory: Path) -> list[str]:
    conf = [f"--conf={name}={value}" for name, value in session_settings(directory).items()]
    pace = ["--max-records", "150", "--every", "0", "--file-size", "24KiB"]
    place = ["--nats", endpoints.servers, "--stream", stream, "--archive", str(root), "--master", "local[2]"]
    return ["pipeline", "archive", *place, *pace, *conf]


def kill_at_a_change(root: Path, command: list[str], change: int) -> None:
    """Run the command, and kill all its processes when files below ``root`` have changed so many times."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jetstream", *command],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        seen, changes = files_in(root), 0
        while changes < change and process.poll() is None:
            pause_thread()
            now = files_in(root)
            seen, changes = now, changes + (now != seen)
        assert process.stderr is not None
        assert process.poll() is None, process.stderr.read().decode()
        os.killpg(process.pid, signal.SIGKILL)


def files_in(root: Path) -> list[str]:
    return sorted(str(Path(directory, name)) for directory, _, names in os.walk(root) for name in names)
