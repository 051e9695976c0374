"""The data source ``jetstream`` of Spark: reads and writes, in batches and as a stream.

Spark imports this module whenever it looks for any format that is written in Python: what reading and writing
need is imported by who reads and writes.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if not __debug__:
    raise ImportError("jetstream does not run under python -O: its assertions guard the data")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class JetstreamDataSource(DataSource):
    """The format ``jetstream`` of a read, a write, and a stream of either; see docs/spark.md."""

    _is_read = False
    """A reader has been made: what is pickled now goes with it to the executors."""

    def __getstate__(self) -> Mapping[str, Any]:
        if not self._is_read:
            return vars(self)
        from jetstream.spark.reading.readers import task_options  # noqa: PLC0415 - see above

        return {**vars(self), "options": task_options(self.options)}

    @classmethod
    def name(cls) -> str:
        """Return what it is called in ``format``."""
        return "jetstream"

    def schema(self) -> "StructType":
        """Return the columns of a read; see `read_schema`."""
        from jetstream.spark.reading.readers import read_schema  # noqa: PLC0415 - see above

        return read_schema(self.options)

    def reader(self, schema: "StructType") -> DataSourceReader:
        """Return what plans and does a batch read; see `batch_reader`."""
        from jetstream.spark.reading.readers import batch_reader  # noqa: PLC0415 - see above

        reader = batch_reader(self.options, schema)
        self._is_read = True
        return reader

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the same for a stream; see `stream_reader`."""
        from jetstream.spark.reading.readers import stream_reader  # noqa: PLC0415 - see above

        reader = stream_reader(self.options, schema)
        self._is_read = True
        return reader

    def writer(self, schema: "StructType", overwrite: bool) -> DataSourceWriter:
        """Return what publishes a data frame; see `JetstreamBatchWriter`."""
        from jetstream.spark.writing.sink import JetstreamBatchWriter  # noqa: PLC0415 - see above
        from jetstream.spark.writing.sink_options import parse_sink_options  # noqa: PLC0415 - see above

        options = parse_sink_options(self.options, streaming=False)
        return JetstreamBatchWriter(options, schema, overwrite=overwrite)

    def streamWriter(self, schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return what publishes a stream; see `JetstreamStreamWriter`."""
        from jetstream.spark.writing.sink import JetstreamStreamWriter  # noqa: PLC0415 - see above
        from jetstream.spark.writing.sink_options import parse_sink_options  # noqa: PLC0415 - see above

        options = parse_sink_options(self.options, streaming=True)
        return JetstreamStreamWriter(options, schema, overwrite=overwrite)


def register(spark: "SparkSession") -> None:
    """Let ``spark`` know the format ``jetstream``, which it also finds by itself."""
    spark.dataSource.register(JetstreamDataSource)
