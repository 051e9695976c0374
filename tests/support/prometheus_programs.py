"""``prometheus`` and ``promtool``: those of the machine, or Debian's, taken out of their package and kept.

The package is not installed, as it would start a server. It is kept in the user's cache directory.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

DOWNLOAD_SECONDS_MAX: Final = 120


class NoPrometheus(Exception):
    """There is none, and none can be had; the text says why."""


def prometheus_program(name: str) -> Path:
    """Return the program ``prometheus`` or ``promtool``.

    Raises:
        NoPrometheus: it is not on the PATH, and Debian's packages cannot be reached.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    kept = cache / "jetstream-prometheus"
    if not (kept / name).exists():
        kept.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as scratch:
            (_download(Path(scratch)) / name).replace(kept / name)  # another process may have done so by now
    return kept / name


def _download(scratch: Path) -> Path:
    """Return the directory of the programs."""
    if shutil.which("apt-get") is None:
        raise NoPrometheus("there is none on the PATH, and no apt-get that could bring it")
    steps = (("apt-get", "--quiet", "download", "prometheus"), ("sh", "-c", "dpkg-deb --extract *.deb ."))
    for step in steps:
        done = subprocess.run(
            step, cwd=scratch, capture_output=True, text=True, check=False, timeout=DOWNLOAD_SECONDS_MAX
        )
        if done.returncode:
            said = done.stderr.strip().splitlines()
            raise NoPrometheus(f"there is none on the PATH, and {step[0]} failed: {said[-1:]}")
    return scratch / "usr" / "bin"
