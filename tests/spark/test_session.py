"""The session that all tests here share is what `spark_session` promises."""

import os
import socket
import sys
from contextlib import suppress

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from jetstream.spark.session import spark_session


def test_workers_run_on_this_interpreter(spark: SparkSession) -> None:
    @sf.udf("string")
    def interpreter() -> str:
        return sys.executable

    assert spark.range(1).select(interpreter()).toArrow().column(0).to_pylist() == [sys.executable]


def test_nothing_between_java_and_python_waits_for_acks_of_tcp(spark: SparkSession) -> None:
    @sf.udf("boolean")
    def is_local() -> bool:
        families = set()
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as end:
                families.add(end.family)
        return families == {socket.AF_UNIX}

    assert spark.range(1).select(is_local()).toArrow().column(0).to_pylist() == [True]


def test_nobody_but_this_machine_can_reach_a_local_session(spark: SparkSession) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.driver.bindAddress") == "127.0.0.1"
    assert settings.get("spark.driver.host") == "127.0.0.1"
    assert settings.get("spark.ui.enabled") == "false"


def test_a_second_session_of_a_process_is_the_first(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    assert spark_session().sparkContext is spark.sparkContext
