"""A Spark driver as a process of its own, which copies and archives a stream, and can be killed.

    python -m tests.support.spark_copying '{"servers": "nats://...", "source": "numbers", ...}'

Its offsets and commits are in its checkpoint, so a second one goes on where the first was killed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from jetstream.log.disk.os_disk import OsDisk
from jetstream.spark import end_spark, spark_session
from jetstream.spark.pipelines.archive import ArchiveSettings, source_options, start
from jetstream.spark.pipelines.archives.archive_store import ArchiveStore, held_archive
from jetstream.spark.pipelines.settings import QuerySettings, stream_of
from tests.support.commands import REPOSITORY
from tests.support.spark_sessions import session_settings

WAIT_SECONDS: Final = 240.0


@dataclass(frozen=True)
class Copying:
    """What is copied: stream ``source`` to ``subject`` of ``copy``, some records in each micro-batch.

    Attributes:
        archives: whether it is archived too, by one driver at a time.
    """

    servers: str
    source: str
    copy: str
    subject: str
    directory: str
    batch_records: int
    archives: bool = True

    @property
    def checkpoint(self) -> Path:
        """Where the query that copies remembers what it has done."""
        return Path(self.directory) / "checkpoint"

    @property
    def archive(self) -> Path:
        """Where the stream is archived."""
        return Path(self.directory) / "archive"

    @property
    def source_options(self) -> dict[str, str]:
        """What both queries read."""
        return {
            "servers": self.servers,
            "stream": self.source,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": str(self.batch_records),
        }


class DriverProcess:
    """The driver, with the Java and the Python workers that it starts; killed at the end of the block."""

    def __init__(self, copying: Copying, name: str = "driver") -> None:
        self._log = Path(copying.directory) / f"{name}.log"
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

    def ended(self) -> int:
        """Return its exit code when it has ended."""
        return self._process.wait(WAIT_SECONDS)

    def finished(self) -> None:
        """Return when it has copied everything."""
        assert self.ended() == 0, self.said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


def copy(copying: Copying) -> None:
    """Copy, and archive, what is in the stream when it begins."""
    spark = spark_session("local[2]", "copying", session_settings(Path(copying.directory)))
    queries = [start_copying(spark, copying)]
    with contextlib.ExitStack() as held:
        if copying.archives:
            copying.archive.mkdir(exist_ok=True)
            disk = OsDisk(copying.archive)
            held.callback(disk.close)
            queries.append(start_archiving(spark, copying, held.enter_context(held_archive(disk))))
        for query in queries:
            query.awaitTermination()
    end_spark(spark)


def start_copying(spark: SparkSession, copying: Copying) -> StreamingQuery:
    """Start the query from source to sink."""
    copies = (
        stream_of(spark, copying.source_options)
        .select("key", "value")
        .writeStream.format("jetstream")
        .option("servers", copying.servers)
        .option("stream", copying.copy)
        .option("subject", copying.subject)
        .option("windowBytes", "16k")
    )
    return QuerySettings(checkpoint=str(copying.checkpoint), once=True).started(copies)


def start_archiving(spark: SparkSession, copying: Copying, store: ArchiveStore) -> StreamingQuery:
    """Start the pipeline from source to Parquet files."""
    settings = ArchiveSettings(root=copying.archive, once=True)
    options = source_options(copying.source_options, store.manifest, settings.checkpoint)
    return start(stream_of(spark, options), store, settings)


if __name__ == "__main__":
    copy(Copying(**json.loads(sys.argv[1])))
