"""What a session is told: ours, the master's, the caller's, and what Java finds in its environment."""

import os
import sys
from pathlib import Path

import pytest

from jetstream.spark import session


def test_what_is_given_wins_over_what_we_would_say() -> None:
    settings = session._settings("local[*]", {"spark.ui.enabled": "true", "spark.driver.host": "here"})
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.host"] == "here"
    assert settings["spark.sql.session.timeZone"] == "UTC"


def test_only_a_local_master_is_kept_on_loopback() -> None:
    assert session._settings("local[2]", {})["spark.driver.bindAddress"] == "127.0.0.1"
    assert not set(session._settings("spark://there:7077", {})) & set(session.LOCAL_DEFAULTS)


def test_options_for_java_are_added_to_ours() -> None:
    options = session._settings("local", {"spark.driver.extraJavaOptions": "-Xss8m"})[
        "spark.driver.extraJavaOptions"
    ]
    quiet, given = options.split(" ")
    assert given == "-Xss8m"
    assert Path(quiet.removeprefix("-Dlog4j2.configurationFile=file://")).is_file()


def test_workers_run_on_this_interpreter_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert session._environment_changes("local[1]")["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in session._environment_changes("spark://there:7077")
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    assert session._environment_changes("local[1]")["PYSPARK_PYTHON"] == "/usr/bin/python3"


def test_under_spark_submit_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert session._environment_changes("local[1]") == {}


def test_the_environment_is_changed_for_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "before")
    monkeypatch.delenv("JETSTREAM_TEST_UNSET", raising=False)
    with session._environment({"JAVA_HOME": "within", "JETSTREAM_TEST_UNSET": "set"}):
        assert os.environ["JAVA_HOME"] == "within"
        assert os.environ["JETSTREAM_TEST_UNSET"] == "set"
    assert os.environ["JAVA_HOME"] == "before"
    assert "JETSTREAM_TEST_UNSET" not in os.environ
