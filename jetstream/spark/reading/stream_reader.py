"""Spark's structured streaming: micro-batches of exact ranges, which can be read again at any time."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from envelope.errors import UnknownStream
from jetstream.spark.options.source_options import SourceOptions
from jetstream.spark.reading.batch_reader import input_partitions, read_partition, warn
from jetstream.spark.reading.cluster import Cluster
from jetstream.spark.reading.offsets import INITIAL, Offsets, decode_offsets, encode_offsets, is_initial
from jetstream.spark.reading.planning import (
    Bounds,
    MicroBatches,
    byte_shares,
    checked_ranges,
    cut_offsets,
    latest_offsets,
    moments_of,
    starting_offsets,
)

Json = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query in the driver, and reads their ranges wherever Spark wants.

    A planner lives as long as its query, and keeps one connection. It is not pickled.
    """

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        """Take checked options, and the columns that Spark wants."""
        self._options = options
        self._schema = schema
        self._batches = MicroBatches(options)
        self._open = ExitStack()
        self._cluster: Cluster | None = None
        self._latest: Bounds | None = None

    def __reduce__(self) -> tuple[type["StreamReader"], tuple[SourceOptions, pa.Schema]]:
        return StreamReader, (self._options.for_tasks(), self._schema)

    # --- the driver ----------------------------------------------------------------------------------

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Return that nothing was read; where the query begins is in the end of its first batch."""
        return dict(INITIAL)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return that there is a limit, if there is: what it is `MicroBatches` knows."""
        options = self._options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        return ReadAllAvailable() if options.min_offsets is None else ReadMinRows(options.min_offsets)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read what is there now, and nothing that comes."""
        self._batches.prepare_available_now()

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """Return where the next batch ends; where it begins if there is nothing to read, or not enough.

        Raises:
            DataLoss: records behind the start are gone, or its streams are.
            RequestError: the start is none of this source.
            JetstreamError: the cluster cannot be asked.
        """
        before = {} if is_initial(start) else decode_offsets(start)
        cluster, bounds = self._asked()
        self._refuse_missing(cluster, before)
        joining = self._joining(cluster, bounds) if is_initial(start) else None
        read_all = isinstance(limit, ReadAllAvailable)
        planned = self._batches.next(before, bounds, time.monotonic(), joining=joining, read_all=read_all)
        warn(planned.warnings)
        end = planned.offsets if read_all else self._cut(cluster, before, planned.offsets, bounds)
        has_moved = is_initial(start) or _places(end) != _places(before)
        return encode_offsets(end) if has_moved else start

    def reportLatestOffset(self) -> Json | None:  # noqa: N802 - Spark's name
        """Return what was committed when that was asked last: how far the query is behind."""
        return None if self._latest is None else encode_offsets(latest_offsets(self._latest))

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Return the ranges of a batch that was planned, now or in an earlier run.

        Raises:
            DataLoss: not all of it is there any more.
            RequestError: start or end are none of this source.
            JetstreamError: the cluster cannot be asked.
        """
        before = {} if is_initial(start) else decode_offsets(start)
        cluster, bounds = self._asked()
        ranges, warnings = checked_ranges(
            before, decode_offsets(end), bounds, fail_on_data_loss=self._options.fail_on_data_loss
        )
        warn(warnings)
        # Not where batches end now: a batch that is run again is to give each task the same rows.
        return input_partitions(self._options, cluster, cluster.pieces_by_offsets(ranges))

    def commit(self, end: Json) -> None:
        """Do nothing: what was read stays where it is."""

    def stop(self) -> None:
        """Close the connection."""
        self._cluster = None
        self._open.close()

    def _asked(self) -> tuple[Cluster, Bounds]:
        """Return the cluster, and what it says is committed now."""
        if self._cluster is None:
            self._cluster = Cluster(self._open.enter_context(self._options.access.open()), self._options)
        self._latest = self._cluster.bounds()
        return self._cluster, self._latest

    def _cut(self, cluster: Cluster, start: Offsets, end: Offsets, bounds: Bounds) -> Offsets:
        """Return the end of a batch of so many bytes as the options allow."""
        max_bytes = self._options.max_bytes
        if max_bytes is None:
            return end
        ranges, _ = checked_ranges(start, end, bounds, fail_on_data_loss=self._options.fail_on_data_loss)
        shares = byte_shares(ranges, max_bytes)
        return cut_offsets(end, {each.stream: cluster.boundary(each, shares[each.stream]) for each in ranges})

    def _joining(self, cluster: Cluster, bounds: Bounds) -> Offsets:
        moments = moments_of(self._options.starting, bounds)
        return starting_offsets(self._options, bounds, cluster.offsets_at(moments))

    def _refuse_missing(self, cluster: Cluster, known: Offsets) -> None:
        """Refuse streams that are not there, and have not been when the query was here last."""
        for name in cluster.missing():
            if not any(log == name or log.startswith(f"{name}/") for log in known):
                raise UnknownStream(f"there is no stream {name!r}", stream=name)

    # --- the executors -------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of one range; see `read_range`."""
        return read_partition(partition, self._options, self._schema)


def _places(offsets: Offsets) -> Mapping[str, tuple[str, int]]:
    return {stream: (place.incarnation, place.offset) for stream, place in offsets.items()}
