"""The npm packages that a directory's lock file pins, installed once into the user's cache directory."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.commands import REPOSITORY

EXAMPLES: Final = REPOSITORY / "examples" / "javascript"
_OUT_OF_REACH: Final = re.compile(r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|ECONNRESET|EAI_AGAIN|E40[0-9]|E50[0-9]")


class NotInstallable(Exception):
    """This machine lacks what installing needs; the text says what."""


def installed_examples(cache: Path | None = None) -> Path:
    """Return a directory with the example scripts and their packages; raises as `installed`."""
    return installed(EXAMPLES, cache)


def installed(source: Path, cache: Path | None = None) -> Path:
    """Return a directory with what is in ``source`` and the packages of its lock file.

    Raises:
        NotInstallable: there is no Node.js or npm, or the packages cannot be had.
        AssertionError: everything is there and they do not install.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstallable("there is no node or npm command on the PATH")
    files = [path for path in sorted(source.glob("*.*")) if path.suffix != ".py"]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    root = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = root / f"jetstream-javascript-{digest.hexdigest()[:16]}"
    if not target.exists():
        _install(npm, files, target)
    return target


def _install(npm: str, files: Sequence[Path], target: Path) -> None:
    """Install into ``target``, which appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="jetstream-javascript-"))
    try:
        for file in files:
            shutil.copy(file, scratch)
        done = subprocess.run(
            [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=scratch,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if done.returncode and _OUT_OF_REACH.search(done.stderr):
            raise NotInstallable(f"the npm packages cannot be had: {done.stderr.strip().splitlines()[0]}")
        assert done.returncode == 0, f"npm ci failed:\n{done.stderr}"
        scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
