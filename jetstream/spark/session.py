"""A Spark session as our pipelines, examples and tests want it, on the Java of `jetstream.spark.java`."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from jetstream.spark.java import find_java

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Over TCP what Spark sends to a Python worker waits 40 ms for the ack of what it sent before.
    "spark.python.unix.domain.socket.enabled": "true",
}
"""Settings of every session of ours, unless it is given others."""

LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""And of those that run on this machine alone: nobody else may reach them, whatever the host is called."""


def spark_session(
    master: str = "local[*]", app_name: str = "jetstream", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session on ``master``; ``settings`` win over ours.

    A second call returns the same session. Java is looked for only where this process has to start it: not
    under ``spark-submit``, nor in a notebook that has a session. Workers of a local master run on this
    interpreter, whatever ``python3`` the PATH has, unless ``PYSPARK_PYTHON`` names another.

    Raises:
        UnavailableError: there is no Java 17 or newer, with what to install.
    """
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in _settings(master, settings or {}).items():
        builder = builder.config(name, value)
    with _environment(_environment_changes(master)):
        return builder.getOrCreate()


def end_spark(spark: SparkSession) -> None:
    """Stop the session and end its Java, if this process started it; returns when it has ended.

    Spark's own ``stop`` leaves Java running, with all its memory, until this process ends.
    """
    spark.stop()
    # PySpark keeps Java's end here, for the next session, and has no function that lets go of it.
    gateway = SparkContext._gateway  # noqa: SLF001 - see above
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - see above
    if gateway is None:
        return
    gateway.shutdown()
    process = gateway.proc
    if process is not None:
        process.stdin.close()
        process.wait()


def _settings(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of a session; what Java is given by the caller comes after ours."""
    local = LOCAL_DEFAULTS if _is_local(master) else {}
    quiet = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    java_options = " ".join(filter(None, (quiet, settings.get(_JAVA_OPTIONS))))
    return {**DEFAULTS, **local, **settings, _JAVA_OPTIONS: java_options}


def _is_local(master: str) -> bool:
    return master.startswith("local")


def _environment_changes(master: str) -> dict[str, str]:
    """Return what Java must find in its environment; nothing if there is none to be started."""
    # PySpark keeps Java's end here and nowhere else.
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:  # noqa: SLF001 - see above
        return {}
    java = {"JAVA_HOME": str(find_java().home)}
    if not _is_local(master):
        return java
    return {**java, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set ``changes`` in this process's environment, which its children inherit, for the block only."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
