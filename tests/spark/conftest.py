"""One Spark session and one node for all tests here: to start a session takes as long as most of them."""

import logging
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import jetstream
from envelope.errors import UnavailableError
from jetstream.client.blocking.client import BlockingClient
from jetstream.spark.java import find_java
from jetstream.spark.session import end_spark, spark_session
from tests.support.commands import up
from tests.support.spark_sessions import home_without_archive, session_settings


@dataclass(frozen=True)
class Endpoints:
    """Where a running node is reached: options ``servers`` and ``sockets`` of source and sink."""

    servers: str
    sockets: str


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session, on two cores. Tests leave it as it was: queries stopped, settings put back."""
    try:
        find_java()
    except UnavailableError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("SPARK_HOME", str(home_without_archive(directory)))
        session = spark_session("local[2]", "tests", session_settings(directory))
    yield session
    assert not session.streams.active, "a test has left its query running"
    end_spark(session)


@pytest.fixture(autouse=True)
def log_as_it_was(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give pytest's log its own format back: PySpark's loggers make JSON of every handler that comes to them.

    It comes to all that do not propagate, as two of them once an error of Spark was raised.
    """
    yield
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, PySparkLogger):
            logger.propagate = True
    plugin = request.config.pluginmanager.get_plugin("logging-plugin")
    assert plugin is not None, "it is part of pytest"
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setFormatter(plugin.formatter)


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A directory for one query's checkpoint."""
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="package")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A node in a process of its own, with its NATS server; each test has streams of its own names."""
    process, found = up(tmp_path_factory.mktemp("node"))
    with process:
        yield Endpoints(found["nats"], found["socket"])
        assert process.signalled(signal.SIGTERM)[0] == 0


@pytest.fixture
def js(endpoints: Endpoints) -> Iterator[BlockingClient]:
    """A client of that node."""
    with jetstream.connect_blocking(endpoints.servers) as client:
        yield client
