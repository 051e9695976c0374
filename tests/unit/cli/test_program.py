"""What the program does before the command line is read."""

import subprocess
import sys

import pytest


@pytest.mark.slow("tests/unit/cli/program/test_lazy_commands.py")
def test_no_command_imports_pandas_though_it_is_installed() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "jetstream", "node", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"jetstream.node.node", "pyarrow.lib"} <= modules
    assert not {module for module in modules if module.startswith("pandas.")}


@pytest.mark.slow("tests/unit/cli/program/test_lazy_commands.py")
def test_spark_is_not_imported_before_a_pipeline_starts() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "jetstream", "pipeline", "table", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "jetstream" in modules
    assert not {"pyspark", "py4j"} & modules


def test_it_does_not_run_without_assertions() -> None:
    command = [sys.executable, "-O", "-m", "jetstream", "node", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "assertions guard the data" in done.stderr
