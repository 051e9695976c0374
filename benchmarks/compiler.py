"""Compiles the C sources of the benchmarks on the spot, with whatever ``cc`` is (``CC`` overrides)."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BUILD: Final = Path(__file__).with_name("build")


class NotCompiled(Exception):
    """There is no compiler, or it did not take the source: its own words are the message."""


def compiled(source: Path, target: Path, flags: Sequence[str]) -> Path:
    """Compile ``source`` unless ``target`` is newer; return the target's path."""
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NotCompiled(f"no C compiler: {source.name} needs cc or gcc")
    target.parent.mkdir(exist_ok=True)
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    command = [compiler, *flags, "-o", str(fresh), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise NotCompiled(f"{' '.join(command)}\n{run.stderr}")
    fresh.replace(target)  # two builds at once both end with a whole file
    return target
