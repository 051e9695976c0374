"""What the program does before the command line is read."""

import os
import subprocess
import sys

import pytest

from jetstream import __main__ as program


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


def test_an_interrupt_while_a_command_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "import_module", interrupted)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    with pytest.raises(SystemExit) as ended:
        program.main()
    assert ended.value.code == 130


def test_an_argument_that_is_no_text_is_refused_in_one_line() -> None:
    command = [os.fsencode(sys.executable), b"-m", b"jetstream", b"pub", b"orders.\xff", b"x"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 2
    assert done.stderr == b"error: argument 2 is not UTF-8: 'orders.\\udcff'\n"


@pytest.mark.parametrize("use", ["jetstream.connect", "jetstream.spark.JetstreamDataSource"])
def test_neither_client_nor_spark_source_runs_without_assertions(use: str) -> None:
    code = f"import jetstream, importlib; importlib.import_module({use.rpartition('.')[0]!r}); {use}"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "assertions guard the data" in done.stderr


def test_it_does_not_run_without_assertions() -> None:
    command = [sys.executable, "-O", "-m", "jetstream", "node", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "assertions guard the data" in done.stderr
