"""Nodes of other versions than the one under test, as processes that import everything anew."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LAST_OF_LEVEL_0: Final = "c170e60b32f3bb742868ddd51023f9c2f14fb43a"
"""The last commit whose nodes knew no feature levels."""


@dataclass(frozen=True, slots=True)
class NodeVersion:
    """Where a version is, and the module that stands for its ``jetstream``."""

    packages: Path
    module: str = "jetstream"

    def started(self, arguments: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        """Start a node of it; output and errors go to ``log``."""
        return subprocess.Popen(
            [sys.executable, "-P", "-m", self.module, *arguments],
            env={**os.environ, "PYTHONPATH": str(self.packages)},
            stdout=log,
            stderr=log,
        )


PRESENT: Final = NodeVersion(REPOSITORY)
"""The one under test."""
LATER: Final = NodeVersion(REPOSITORY, "tests.support.later_version")
"""One that can one feature level more."""


def before_levels(directory: Path) -> NodeVersion:
    """Build the wheel of the last version of level 0, and install it into a directory of its own.

    Its dependencies are those of the version under test. Skips where the repository's history is cut off.
    """
    source, wheels, packages = (directory / name for name in ("source", "wheels", "packages"))
    source.mkdir(parents=True)
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", LAST_OF_LEVEL_0], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"there is no commit {LAST_OF_LEVEL_0} here: {archive.stderr.decode().strip()}")
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(source)], check=True)
    [wheel] = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(packages), str(wheel)], check=True)
    return NodeVersion(packages)
