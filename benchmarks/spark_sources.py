"""Data sources that only benchmarks have: ours as tuples, and ours with a clock in it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.spark_scene import TIMES_VARIABLE
from jetstream.spark.source import JetstreamDataSource


class TupleSource(JetstreamDataSource):
    """What the source would be without Arrow between Python and Spark: a tuple for each record."""

    @classmethod
    def name(cls) -> str:
        """Return what it is called in ``format``."""
        return "jetstream_tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the source's own reader, behind one that makes tuples."""
        return TupleReader(super().reader(schema))


class TupleReader(DataSourceReader):
    """Reads as another one does, and makes tuples of it."""

    def __init__(self, reader: DataSourceReader) -> None:
        self._reader = reader

    def partitions(self) -> list[InputPartition]:
        """Return those of the other one."""
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield a tuple for each row."""
        for batch in self._reader.read(partition):
            assert isinstance(batch, pa.RecordBatch), "ours yields batches"
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TimedSource(JetstreamDataSource):
    """The source as it is, with a clock around what it does in a micro-batch."""

    @classmethod
    def name(cls) -> str:
        """Return what it is called in ``format``."""
        return "jetstream_timed"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the source's own reader, behind a clock."""
        return TimedReader(super().streamReader(schema))


class TimedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Does what another one does, and writes down how long that took: a line for each call."""

    def __init__(self, reader: DataSourceStreamReader) -> None:
        self._reader = reader

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader`; not timed."""
        return self._reader.initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader`; not timed."""
        return self._reader.getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """See `SupportsTriggerAvailableNow`; not timed."""
        assert isinstance(self._reader, SupportsTriggerAvailableNow), "ours does"
        self._reader.prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """See `DataSourceStreamReader`; timed where there is something new."""
        begun = time.perf_counter_ns()
        found = self._reader.latestOffset(start, limit)
        if found != start:
            _note("latestOffset", time.perf_counter_ns() - begun)
        return found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """See `DataSourceStreamReader`; timed."""
        begun = time.perf_counter_ns()
        found = list(self._reader.partitions(start, end))
        _note("partitions", time.perf_counter_ns() - begun)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """See `DataSourceStreamReader`; timed but for what Spark does with the batches in between."""
        begun, spent = time.perf_counter_ns(), 0
        for batch in self._reader.read(partition):
            spent += time.perf_counter_ns() - begun
            assert isinstance(batch, pa.RecordBatch), "ours yields batches"
            yield batch
            begun = time.perf_counter_ns()
        _note("read", spent + time.perf_counter_ns() - begun)

    def commit(self, end: dict[str, Any]) -> None:
        """See `DataSourceStreamReader`; not timed."""
        self._reader.commit(end)

    def stop(self) -> None:
        """See `DataSourceStreamReader`; not timed."""
        self._reader.stop()


def _note(call: str, nanoseconds: int) -> None:
    with Path(os.environ[TIMES_VARIABLE]).open("a", encoding="ascii") as times:
        times.write(f"{call} {nanoseconds}\n")
