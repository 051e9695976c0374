"""The npm packages of ``examples/javascript``, installed once into the user's cache directory."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.support.commands import REPOSITORY

EXAMPLES: Final = REPOSITORY / "examples" / "javascript"
_MANIFESTS: Final = ("package.json", "package-lock.json")
_OUT_OF_REACH: Final = re.compile(r"ENOTFOUND|ECONNREFUSED|ETIMEDOUT|ECONNRESET|EAI_AGAIN|E40[0-9]|E50[0-9]")


class NotInstallable(Exception):
    """This machine lacks what installing needs; the text says what."""


def installed_examples(cache: Path | None = None) -> Path:
    """Return a directory with the example scripts and their packages.

    Raises:
        NotInstallable: there is no Node.js or npm, or the packages cannot be had.
        AssertionError: everything is there and they do not install.
    """
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstallable("there is no node or npm command on the PATH")
    digest = hashlib.sha256()
    for source in sorted(EXAMPLES.glob("*.*")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    root = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = root / f"jetstream-javascript-{digest.hexdigest()[:16]}"
    if not target.exists():
        _install(npm, target)
    return target


def _install(npm: str, target: Path) -> None:
    """Install into ``target``, which appears whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="jetstream-javascript-"))
    try:
        for source in EXAMPLES.glob("*.*"):
            shutil.copy(source, scratch)
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
