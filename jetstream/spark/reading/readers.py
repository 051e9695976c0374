"""The data source's reads: options and columns checked, and the planners and readers of these."""

import sys
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.option_names import lowered, names_of
from jetstream.spark.options.option_values import flag
from jetstream.spark.options.source_options import SourceOptions, parse_source_options
from jetstream.spark.reading.batch_reader import FilteringBatchReader, SparkBatchReader
from jetstream.spark.reading.columns import check_schema, output_schema
from jetstream.spark.reading.stream_reader import StreamReader
from jetstream.spark.task_process import settle_process

_PLANS_WITH_FILTERS: Final = "pyspark.sql.worker.data_source_pushdown_filters"
"""What runs in the process in which Spark plans a read with filters; its switch for that is on then."""


_OF_NATS: Final = frozenset(name.lower() for name in ClusterAccess.nats_option_names())


def read_schema(options: Mapping[str, str]) -> StructType:
    """Return the columns that the options name; it is open yet whether a batch or a stream reads them.

    Raises:
        InvalidOption: an invalid option.
    """
    settle_process()
    stream_only = {name.lower() for name in names_of(SourceOptions, "stream")}
    is_stream = not stream_only.isdisjoint(lowered(options))
    return from_arrow_schema(output_schema(parse_source_options(options, streaming=is_stream).output_columns))


def batch_reader(options: Mapping[str, str], schema: StructType) -> SparkBatchReader:
    """Return the planner and reader of a batch read of these columns.

    Raises:
        InvalidOption: an invalid option.
        RequestError: a column that does not exist.
    """
    reader = FilteringBatchReader if _takes_filters() else SparkBatchReader
    return reader(parse_source_options(options, streaming=False), _checked(schema))


def stream_reader(options: Mapping[str, str], schema: StructType) -> StreamReader:
    """Return the same for a stream; raises what `batch_reader` raises."""
    return StreamReader(parse_source_options(options, streaming=True), _checked(schema))


def task_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return what executors may know of a read's options, which have been checked."""
    texts = lowered(options)
    if flag("executorNats", texts.get("executornats", "true")):
        return texts
    return {name: text for name, text in texts.items() if name not in _OF_NATS}


def _checked(schema: StructType) -> pa.Schema:
    wanted = to_arrow_schema(schema, timezone="UTC")
    check_schema(wanted)
    return wanted


def _takes_filters() -> bool:
    """Return whether Spark will hand filters over: it refuses a reader of filters if its switch is off."""
    main = sys.modules["__main__"].__spec__
    return _PLANS_WITH_FILTERS in sys.modules or (main is not None and main.name == _PLANS_WITH_FILTERS)
