"""Settings of every streaming pipeline: the directory of its checkpoint, and when it looks for more."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FORMAT: Final = "jetstream"
"""Name of our data source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """How a streaming query runs.

    Attributes:
        checkpoint: directory of Spark's own state; with it the query goes on where it was, however it ended.
        once: process what is there at the start, and end.
        every_s: else, seconds from the start of one micro-batch to the next; 0: at once.
    """

    checkpoint: str
    once: bool = False
    every_s: float = 10.0

    def started(self, writer: "DataStreamWriter") -> "StreamingQuery":
        """Start the query of ``writer``."""
        writer = writer.option("checkpointLocation", self.checkpoint)
        if self.once:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=f"{round(self.every_s * 1000)} milliseconds").start()


def stream_of(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """Return the records of a stream as they come, by the options of our source."""
    from jetstream.spark.source import register  # noqa: PLC0415 - with it comes Spark

    register(spark)
    return spark.readStream.format(FORMAT).options(**options).load()
