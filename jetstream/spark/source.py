"""The data source ``jetstream`` of Spark.

Spark imports this module whenever it looks for any format that is written in Python: what reading needs is
imported by who reads.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class JetstreamDataSource(DataSource):
    """``spark.read.format("jetstream")`` and ``spark.readStream.format("jetstream")``; see docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        """Return what it is called in ``format``."""
        return "jetstream"

    def schema(self) -> "StructType":
        """Return the columns of a read; see `read_schema`."""
        from jetstream.spark.reading import read_schema  # noqa: PLC0415 - see above

        return read_schema(self.options)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return what plans and does a batch read; see `batch_reader`."""
        from jetstream.spark.reading import batch_reader  # noqa: PLC0415 - see above

        return batch_reader(self.options, schema)

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the same for a stream; see `stream_reader`."""
        from jetstream.spark.reading import stream_reader  # noqa: PLC0415 - see above

        return stream_reader(self.options, schema)


def register(spark: "SparkSession") -> None:
    """Let ``spark`` know the format ``jetstream``, which it also finds by itself."""
    spark.dataSource.register(JetstreamDataSource)
