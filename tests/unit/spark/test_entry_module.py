"""The module that Spark looks for: it is the data source, and brings nothing that only reading needs."""

import subprocess
import sys

from pyspark.sql.datasource import DataSource

import pyspark_jetstream
from jetstream.spark import JetstreamDataSource

LOADED = "import pyspark_jetstream, sys; print(*sys.modules)"


def test_what_spark_looks_for_is_our_data_source() -> None:
    assert pyspark_jetstream.DefaultSource is JetstreamDataSource
    assert issubclass(pyspark_jetstream.DefaultSource, DataSource)
    assert pyspark_jetstream.DefaultSource.name() == "jetstream"


def test_who_looks_for_formats_does_not_pay_for_reading() -> None:
    """Every Python worker that looks for any format imports it."""
    loaded = subprocess.check_output([sys.executable, "-c", LOADED], text=True).split()
    assert "jetstream.spark.source" in loaded
    assert not {"jetstream.client", "jetstream.spark.reading.readers", "nats", "pydantic"}.intersection(
        loaded
    )
