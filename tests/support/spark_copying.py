"""A Spark driver as a process of its own, which copies a stream until it has all of it, and can be killed.

    python -m tests.support.spark_copying '{"servers": "nats://...", "source": "numbers", ...}'

Its offsets and commits are in its checkpoint, so a second one goes on where the first was killed.
"""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from jetstream.spark import end_spark, spark_session
from tests.support.commands import REPOSITORY
from tests.support.spark_sessions import session_settings

WAIT_SECONDS: Final = 240.0


@dataclass(frozen=True)
class Copying:
    """What is copied: stream ``source`` to ``subject`` of ``copy``, some records in each micro-batch."""

    servers: str
    source: str
    copy: str
    subject: str
    directory: str
    batch_records: int

    @property
    def checkpoint(self) -> Path:
        """Where the query remembers what it has done."""
        return Path(self.directory) / "checkpoint"


class DriverProcess:
    """The driver, with the Java and the Python workers that it starts; killed at the end of the block."""

    def __init__(self, copying: Copying) -> None:
        self._log = Path(copying.directory) / "driver.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-W",
                    "error",
                    "-m",
                    "tests.support.spark_copying",
                    json.dumps(asdict(copying)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether it has, by itself."""
        return self._process.poll() is not None

    @property
    def said(self) -> str:
        """What it and its Java have logged."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL for the driver and its Java at once; the workers are left to notice."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(WAIT_SECONDS)

    def finished(self) -> None:
        """Return when it has copied everything."""
        code = self._process.wait(WAIT_SECONDS)
        assert code == 0, self.said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


def copy(copying: Copying) -> None:
    """Copy what is in the stream when it begins."""
    spark = spark_session("local[2]", "copying", session_settings(Path(copying.directory)))
    records = (
        spark.readStream.format("jetstream")
        .option("servers", copying.servers)
        .option("stream", copying.source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", copying.batch_records)
        .load()
    )
    query = (
        records.select("key", "value")
        .writeStream.format("jetstream")
        .option("servers", copying.servers)
        .option("stream", copying.copy)
        .option("subject", copying.subject)
        .option("windowBytes", "16k")
        .option("checkpointLocation", str(copying.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    end_spark(spark)


if __name__ == "__main__":
    copy(Copying(**json.loads(sys.argv[1])))
