"""Benchmarks of Spark at their smallest, so that none rots unseen; no number is judged here."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.report import Report
from tests.support.commands import REPOSITORY


@pytest.mark.deep
@pytest.mark.parametrize(
    "name", ["spark_read", "spark_stream", "spark_latency", "spark_sink", "spark_memory"]
)
def test_a_benchmark_of_spark_accounts_for_every_row_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    saved = tmp_path / "results" / "report.json"
    words = [name, "--quick", "--data", str(tmp_path), "--json", str(saved)]
    # In a process of its own: it has a session of its own, and ends it.
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *words], cwd=REPOSITORY, capture_output=True, check=False
    )

    # 3: a bar was missed, which is nothing to be judged on such a run.
    assert ended.returncode in (0, 3), ended.stderr[-4000:]
    report = Report.model_validate_json(saved.read_text())
    assert report.rows
    assert report.bars
    assert not report.problems
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
