"""The notebook in examples/ says what is known of its flights, and draws a picture."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from pyspark.sql import SparkSession

from tests.spark.conftest import Endpoints
from tests.support.commands import REPOSITORY

EXAMPLE = REPOSITORY / "examples" / "flights_spark.py"
OUTPUT = """\
336776 flights are in the stream
328521 of them departed, 12.6 minutes late on average
"""
"""The mean that the documentation of the data set has, too: 12.639."""


def check_picture(picture: Path) -> None:
    """It is of a size to look at, and not empty."""
    pixels = imread(picture)
    assert pixels.shape[0] > 500
    assert pixels.shape[1] > 1200
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 100


@pytest.mark.slow("tests/spark/test_aggregate.py")
def test_the_notebook_ends_in_a_picture(
    spark: SparkSession,
    endpoints: Endpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In the session of all tests, which it must not end."""
    ended: list[SparkSession] = []
    monkeypatch.setattr("jetstream.spark.session.end_spark", ended.append)
    monkeypatch.setattr("jetstream.spark.end_spark", ended.append)
    monkeypatch.setattr(
        "sys.argv", [EXAMPLE.name, "--servers", endpoints.servers, "--picture", str(tmp_path / "delays.png")]
    )
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert capsys.readouterr().out == f"{OUTPUT}the picture is {tmp_path / 'delays.png'}\n"
    assert [session.sparkContext for session in ended] == [spark.sparkContext]
    check_picture(tmp_path / "delays.png")


@pytest.mark.deep
def test_the_notebook_runs_by_itself_and_says_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == (f"{OUTPUT}the picture is delays.png\n", 0), done.stderr
    assert done.stderr == "WARNING: Using incubator modules: jdk.incubator.vector\n"
    check_picture(tmp_path / "delays.png")
    assert [path.name for path in tmp_path.iterdir()] == ["delays.png"]
