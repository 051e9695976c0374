"""Prometheus's ``promtool``: that of the machine, or Debian's, taken out of its package and kept.

The package is not installed, as it would start a server. It is kept in the user's cache directory.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

DOWNLOAD_SECONDS_MAX = 120


class NoPromtool(Exception):
    """There is none, and none can be had; the text says why."""


def promtool() -> Path:
    """Return the program.

    Raises:
        NoPromtool: there is none on the PATH, and Debian's packages cannot be reached.
    """
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "jetstream-promtool" / "promtool"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
            _download(Path(scratch)).rename(kept)
    return kept


def _download(scratch: Path) -> Path:
    if shutil.which("apt-get") is None:
        raise NoPromtool("there is no promtool on the PATH, and no apt-get that could bring it")
    steps = (("apt-get", "--quiet", "download", "prometheus"), ("sh", "-c", "dpkg-deb --extract *.deb ."))
    for step in steps:
        done = subprocess.run(
            step, cwd=scratch, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS_MAX
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise NoPromtool(f"there is no promtool on the PATH, and {step[0]} failed: {said[-1:]}")
    return scratch / "usr" / "bin" / "promtool"
