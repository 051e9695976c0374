"""Tasks of the sink, without a Spark session."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType


@contextmanager
def task(partition: int = 0, *, query: str | None = None, batch: int = 0) -> Iterator[None]:
    """Be a task of Spark for a block."""
    streaming = {} if query is None else {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}
    TaskContext(partitionId=partition, localProperties=streaming)
    yield
    TaskContext._setTaskContext(None)


def schema_of(table: pa.Table) -> StructType:
    return from_arrow_schema(table.schema)
