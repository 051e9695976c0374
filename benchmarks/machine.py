"""Which machine and which code a result belongs to."""

import os
import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Final

from jetstream.node.nats.embedded_server import find_nats_server

REPOSITORY: Final = Path(__file__).parent.parent
LIBRARIES: Final = ("pyarrow", "nats-py", "uvloop")
MEMORY_FILESYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
LOOP_ROUNDS: Final = 100_000
LOOP_ATTEMPTS: Final = 5


def describe(directory: Path) -> dict[str, object]:
    """Describe the machine as far as it matters for numbers: processor, kernel, file system, versions."""
    device, filesystem, options = mount_of(directory)
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "filesystem": {"device": device, "type": filesystem, "options": options},
        "python": platform.python_version(),
        "python_loop_ns": round(python_loop_ns()),
        "libraries": {name: version(name) for name in LIBRARIES},
        "nats_server": _output([find_nats_server(), "--version"]),
        "load_average_before": os.getloadavg()[0],
    }


def describe_code() -> dict[str, object]:
    """Return commit, its date, and whether the tree differs from it; None where there is no git history."""
    return {
        "commit": _output(["git", "rev-parse", "HEAD"]),
        "date": _output(["git", "log", "-1", "--format=%cI"]),
        "changed": bool(_output(["git", "status", "--porcelain"])),
    }


def python_loop_ns() -> float:
    """Return how many nanoseconds a round of a loop of calls, texts and containers takes; the best of a few.

    Interpreters of one version differ by almost half: built with profile-guided optimisation, or without.
    """

    def attempt() -> int:
        kept: dict[int, tuple[int, str]] = {}
        begun = time.perf_counter_ns()
        for number in range(LOOP_ROUNDS):
            kept[number & 0xFF] = _pair(number)
        return time.perf_counter_ns() - begun

    return min(attempt() for _ in range(LOOP_ATTEMPTS)) / LOOP_ROUNDS


def _pair(number: int) -> tuple[int, str]:
    return number, str(number)


def mount_of(directory: Path) -> tuple[str, str, str]:
    """Return device, file-system type and mount options of the mount that holds ``directory``."""
    best = ("", "unknown", "")
    longest = 0
    resolved = directory.resolve()
    for line in Path("/proc/mounts").read_text().splitlines():
        device, point, filesystem, options = line.split()[:4]
        if resolved.is_relative_to(point) and len(point) >= longest:
            best, longest = (device, filesystem, options), len(point)
    return best


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _output(command: list[str]) -> str | None:
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None if done.returncode == 0 else None
