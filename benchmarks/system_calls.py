"""The system calls of running processes, by name, as ``strace -f -c`` counts them."""

import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

from benchmarks.processes import ProcessError, stop, stop_with_parent

_ATTACHED: Final = b"attached"
_RULER: Final = "------"
_TOTAL: Final = "total"


@contextmanager
def traced(processes: Mapping[str, int], directory: Path) -> Iterator[dict[str, dict[str, int]]]:
    """Count the system calls of all threads of processes while the block runs.

    Args:
        processes: pids by role.
        directory: of files that the tracers need.

    Yields:
        By role the calls by name; empty until the block has ended.

    Raises:
        ProcessError: there is no strace, or it may not trace them.
    """
    calls: dict[str, dict[str, int]] = {}
    files = {role: directory / f"{pid}.strace" for role, pid in processes.items()}
    with ExitStack() as stack:
        for role, pid in processes.items():
            stack.enter_context(_tracing(pid, files[role]))
        yield calls
    calls |= {role: parsed(file.read_text()) for role, file in files.items()}


def parsed(summary: str) -> dict[str, int]:
    """Return the calls by name out of the table that ``strace -c`` prints."""
    calls: dict[str, int] = {}
    lines = iter(summary.splitlines())
    for line in lines:
        if line.startswith(_RULER):
            break
    for line in lines:
        if line.startswith(_RULER):
            break
        words = line.split()  # share, seconds, microseconds a call, calls, errors if there are any, name
        calls[words[-1]] = int(words[3])
    assert _TOTAL not in calls, summary
    return calls


@contextmanager
def _tracing(pid: int, file: Path) -> Iterator[None]:
    command = ["strace", "-f", "-c", "-o", str(file), "-p", str(pid)]
    try:
        tracer = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            preexec_fn=stop_with_parent,  # noqa: PLW1509 - no thread of ours runs while tracers start
        )
    except FileNotFoundError:
        raise ProcessError("strace is not installed: system calls are counted by it") from None
    with tracer:
        assert tracer.stderr is not None
        try:
            _wait_until_attached(tracer.stderr, pid)
            yield
            tracer.send_signal(signal.SIGINT)  # it lets the process go, and prints its table
            tracer.wait()
        finally:
            stop(tracer)


def _wait_until_attached(words: IO[bytes], pid: int) -> None:
    said = words.readline()
    if _ATTACHED not in said:
        raise ProcessError(f"strace does not trace process {pid}: {said.decode(errors='replace').strip()}")
