"""The import contracts hold, and each of them breaks on a deliberate violation."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.source_tree import PACKAGES, ROOT, table

_LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def _copy_packages(target: Path) -> Path:
    shutil.copyfile(ROOT / "pyproject.toml", target / "pyproject.toml")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def _lint(root: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(_LINT_IMPORTS), "--cache-dir", str(cache), "--no-logo"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import-cache")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _copy_packages(tmp_path_factory.mktemp("tree"))


def test_the_import_contracts_hold(tree: Path, cache: Path) -> None:
    result = _lint(tree, cache)
    assert result.returncode == 0, result.stdout + result.stderr


_PURE = "pure packages do no I/O, read no clock, draw no chance, write no log"
_BAD_IMPORTS = [
    ("top-level packages point one way", "metadata/stream_config.py", "import jetstream.log"),
    ("top-level packages point one way", "consumer_groups/__init__.py", "import metadata.stream_config"),
    ("top-level packages point one way", "jetstream/spark/java.py", "import pyspark_jetstream"),
    ("inside jetstream", "jetstream/log/__init__.py", "import jetstream.client"),
    (_PURE, "envelope/subjects.py", "import time"),
    (
        _PURE,
        "jetstream/fetch/__init__.py",
        "import jetstream.log.disk.os_disk",
    ),  # os, by way of another module
    ("envelopes are made and read without Arrow", "envelope/envelopes.py", "import pyarrow.ipc"),
    ("envelopes are made and read without Arrow", "envelope/acks.py", "import numpy as np"),
    (_PURE, "consumer_groups/__init__.py", "import asyncio"),
    (
        "consumer groups need nothing but the standard library and envelope",
        "consumer_groups/__init__.py",
        "import pydantic",
    ),
    ("the log is blocking, never asyncio", "jetstream/log/__init__.py", "import asyncio"),
    (
        "clients stand on the protocol, not on the server",
        "jetstream/client/__init__.py",
        "import jetstream.fetch",
    ),
    (
        "inside consumer groups",
        "consumer_groups/assignment/__init__.py",
        "import consumer_groups.coordinator",
    ),
    ("inside the metadata shell", "metadata/node/storage/__init__.py", "import metadata.node.voter"),
    ("inside the log", "jetstream/log/format/__init__.py", "import jetstream.log.disk"),
    ("inside the client", "jetstream/client/nodes/__init__.py", "import jetstream.client.read"),
    ("inside the command", "jetstream/cli/output/__init__.py", "import jetstream.cli.program"),
    ("inside the node", "jetstream/node/readers/__init__.py", "import jetstream.node.replicas"),
    ("inside Spark", "jetstream/spark/reading/__init__.py", "import jetstream.spark.source"),
    (
        "inside the pipelines",
        "jetstream/spark/pipelines/archives/__init__.py",
        "import jetstream.spark.pipelines.archive",
    ),
    ("inside the ingest", "jetstream/ingest/publishers/__init__.py", "import jetstream.ingest.sequencer"),
    ("inside Raft", "metadata/raft/messages/__init__.py", "import metadata.raft.machine"),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> dict[str, str]:
    """All bad imports at once, in a tree of their own: what is found, by contract."""
    tree = _copy_packages(tmp_path_factory.mktemp("bad-tree"))
    for _, path, line in _BAD_IMPORTS:
        with (tree / path).open("a") as file:
            file.write(f"\n{line}\n")
    result = _lint(tree, cache)
    assert result.returncode == 1, result.stdout + result.stderr
    sections = re.split(r"^(.+)\n-{3,}$", result.stdout, flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


@pytest.mark.parametrize(("contract", "path", "line"), _BAD_IMPORTS)
def test_one_bad_import_breaks_its_contract(
    contract: str, path: str, line: str, broken: dict[str, str]
) -> None:
    importer = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    imported = line.split()[1]
    if imported.split(".")[0] not in PACKAGES:
        imported = imported.split(".")[0]
    assert re.search(rf"^- +{importer} -> {imported} \(l\.\d+\)$", broken[contract], re.MULTILINE)


def test_a_new_folder_inside_jetstream_needs_a_layer(tree: Path, cache: Path) -> None:
    folder = tree / "jetstream" / "unlisted"
    folder.mkdir()
    (folder / "__init__.py").touch()
    try:
        result = _lint(tree, cache)
    finally:
        shutil.rmtree(folder)
    assert result.returncode != 0, result.stdout
    assert "unlisted" in result.stdout + result.stderr


def test_every_contract_has_a_deliberate_violation() -> None:
    contracts = table("tool", "importlinter")["contracts"]
    assert isinstance(contracts, list)
    assert {contract["name"] for contract in contracts} == {bad[0] for bad in _BAD_IMPORTS}
