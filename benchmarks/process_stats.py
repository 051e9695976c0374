"""What the kernel says about processes: CPU time, memory, bytes made dirty for a disk (Linux ``/proc``)."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

TICK_SECONDS: Final = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Counters of one process since its start, all threads together."""

    cpu_seconds: float
    resident_bytes: int
    anonymous_bytes: int
    """Resident memory that is not a file's page: what the process itself holds."""
    written_bytes: int
    """Bytes the process made dirty for a disk; the page cache may not have written them yet."""

    @classmethod
    def of(cls, pid: int) -> Self:
        """Read the sample.

        Raises:
            ProcessLookupError: the process has ended, whether or not somebody has waited for it.
        """
        process = Path("/proc") / str(pid)
        if not process.exists():
            raise ProcessLookupError(f"there is no process {pid}")
        # The command may hold spaces and brackets: fields are counted from the last bracket.
        fields = (process / "stat").read_text().rpartition(")")[2].split()
        status = _table(process / "status")
        if "VmRSS" not in status:
            raise ProcessLookupError(f"process {pid} has ended")
        return cls(
            cpu_seconds=(int(fields[11]) + int(fields[12])) * TICK_SECONDS,
            resident_bytes=_kilobytes(status["VmRSS"]),
            anonymous_bytes=_kilobytes(status["RssAnon"]),
            written_bytes=int(_table(process / "io")["write_bytes"]),
        )


def descendants(pid: int) -> dict[int, int]:
    """Return the processes that a process has started, and those that they have, each with its parent."""
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # a thread that has ended meanwhile
                for child in map(int, path.read_text().split()):
                    found[child] = parent
                    waiting.append(child)
    return found


def machine_busy_seconds() -> float:
    """CPU seconds all cores together have spent on anything but idling and waiting for a disk."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return (user + nice + system + irq + softirq + steal) * TICK_SECONDS


def _table(path: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in path.read_text().splitlines())


def _kilobytes(field: str) -> int:
    return int(field.split(maxsplit=1)[0]) * 1024
