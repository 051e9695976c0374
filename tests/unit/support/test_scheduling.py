"""How xdist shares out files: those of Spark go to one process, in their order, under their own names."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import REPOSITORY
from tests.support.scheduling import runs_spark

CONFTEST = "from tests.conftest import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler"
TEST = """
import json, os, pathlib, pytest

@pytest.mark.parametrize("case", ["a@b", "c::d"])
def test_where_it_runs(case, request):
    with pathlib.Path("ran").open("a") as ran:
        ran.write(json.dumps([os.getpid(), request.node.nodeid]) + chr(10))
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/spark/test_source.py", True),
        ("tests/spark/deeper/test_source.py", True),
        ("tests/chaos/test_spark_faults.py", True),
        ("tests/unit/spark/test_java.py", False),
        ("tests/chaos/test_chaos.py", False),
        ("tests/unit/test_spark.py", False),
    ],
)
def test_files_of_spark_are_known_by_their_place_or_name(path: str, expected: bool) -> None:
    assert runs_spark(path) == expected


@pytest.mark.slow(
    "tests/unit/support/test_scheduling.py::test_files_of_spark_are_known_by_their_place_or_name"
)
def test_all_tests_of_spark_run_in_one_process_and_in_order(tmp_path: Path) -> None:
    files = (
        "chaos/test_spark_kills.py",
        "spark/test_one.py",
        "spark/test_two.py",
        "unit/test_a.py",
        "unit/test_b.py",
    )
    for name in files:
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TEST)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = --import-mode=importlib --no-loadscope-reorder\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [json.loads(line) for line in (tmp_path / "ran").read_text().splitlines()]
    of_spark = [(process, name) for process, name in ran if runs_spark(name)]
    assert len({process for process, _ in of_spark}) == 1
    assert [name for _, name in of_spark] == [
        f"tests/{file}::test_where_it_runs[{case}]" for file in files[:3] for case in ("a@b", "c::d")
    ]
    assert {process for process, name in ran if not runs_spark(name)} - {of_spark[0][0]}
