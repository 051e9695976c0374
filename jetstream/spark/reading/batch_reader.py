"""Spark's batch read: what there is when it is planned, in exact ranges."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from envelope.errors import UnknownStream
from jetstream.client.nodes.socket_access import ReadPass
from jetstream.spark.options.source_options import SourceOptions
from jetstream.spark.reading.cluster import Cluster
from jetstream.spark.reading.filters import Pushed, pushed
from jetstream.spark.reading.planning import (
    Bounds,
    IncarnationRange,
    ReadPiece,
    batch_ranges,
    ending_offsets,
    moments_of,
    starting_offsets,
)
from jetstream.spark.reading.range_reader import LogPiece, read_range
from jetstream.spark.task_process import settle_process

_log = logging.getLogger(__name__)


class SparkBatchReader(DataSourceReader):
    """Reads ranges of streams; pickled to where they are read."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        """Take checked options, and the columns that Spark wants."""
        self._options = options
        self._schema = schema
        self._pushed = Pushed(subject=options.subject, key=options.key)

    def __getstate__(self) -> Mapping[str, Any]:
        return {**vars(self), "_options": self._options.for_tasks()}

    def partitions(self) -> list[InputPartition]:
        """Return what there is to read now.

        Raises:
            DataLoss: the options name records that are gone.
            InvalidOption: they name a place that there is not.
            UnknownStream: they name a stream that there is not.
            JetstreamError: the cluster cannot be asked.
        """
        settle_process()
        with self._options.access.open() as client:
            cluster = Cluster(client, self._options)
            missing = cluster.missing()
            if missing:
                raise UnknownStream(f"there is no stream {missing[0]!r}", stream=missing[0])
            bounds = cluster.bounds()
            ranges = self._narrowed(cluster, self._ranges(cluster, bounds))
            return input_partitions(self._options, cluster, cluster.pieces_by_batches(ranges))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range; see `read_range`."""
        return read_partition(partition, self._options, self._schema)

    def _ranges(self, cluster: Cluster, bounds: Bounds) -> list[IncarnationRange]:
        options = self._options
        starts = starting_offsets(options, bounds, cluster.offsets_at(moments_of(options.starting, bounds)))
        ends = ending_offsets(options, bounds, cluster.offsets_at(moments_of(options.ending, bounds)))
        ranges, warnings = batch_ranges(options, bounds, starts, ends)
        warn(warnings)
        return ranges

    def _narrowed(self, cluster: Cluster, ranges: list[IncarnationRange]) -> list[IncarnationRange]:
        """Return what of the ranges filters leave."""
        logs = [each.stream for each in ranges]
        times = self._pushed.times
        since = {} if times.start is None else cluster.offsets_at(dict.fromkeys(logs, times.start))
        before = {} if times.end is None else cluster.offsets_at(dict.fromkeys(logs, times.end))
        return [
            kept
            for each in ranges
            if (kept := self._cut(each, since.get(each.stream), before.get(each.stream))).size > 0
        ]

    def _cut(self, whole: IncarnationRange, since: int | None, before: int | None) -> IncarnationRange:
        wanted = self._pushed.offsets.within(since, before).within(whole.start, whole.end)
        assert wanted.start is not None, "a range has a start"
        assert wanted.end is not None, "a range has an end"
        return whole._replace(start=wanted.start, end=max(wanted.start, wanted.end))


class FilteringBatchReader(SparkBatchReader):
    """The same with filters from Spark, which refuses such a reader if its switch for filters is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Apply the filters that the source can; return the others, for Spark."""
        self._pushed, rest = pushed(filters, self._pushed)
        self._options = replace(self._options, subject=self._pushed.subject, key=self._pushed.key)
        return rest


def input_partitions(
    options: SourceOptions, cluster: Cluster, pieces: Iterable[IncarnationRange]
) -> list[InputPartition]:
    """Return what Spark gives to its tasks, a piece to each."""
    passes: dict[str, ReadPass | None] = {}
    found = []
    for each in pieces:
        if each.stream not in passes:
            passes[each.stream] = cluster.read_pass(each.stream)
        log, piece = cluster.logs[each.stream], ReadPiece(each, not options.fail_on_data_loss)
        found.append(InputPartition(LogPiece(piece, *log, passes[each.stream])))
    return found


def read_partition(
    partition: InputPartition, options: SourceOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the records of what `input_partitions` made; Spark makes one of its own where there is none."""
    settle_process()
    if partition.value is None:
        return iter(())
    return read_range(partition.value, options, schema)


def warn(warnings: Iterable[str]) -> None:
    """Log accepted losses."""
    for warning in warnings:
        _log.warning("%s", warning)
