"""A program under test that can be killed, frozen, and started again in the directory it had."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from benchmarks.processes import ProcessError, last_words, stop, stop_with_parent


class ServerProcess:
    """One server of a cluster; ends by its process id, whatever state it is in."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        """Prepare it; ``log`` is appended to at every start."""
        self.name = name
        self.log = log
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the running process."""
        return self._running().pid

    def start(self) -> Self:
        """Start it; whether it serves yet is the cluster's question."""
        assert self._process is None, f"{self.name} is running"
        with self.log.open("ab") as words:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                preexec_fn=stop_with_parent,  # noqa: PLW1509 - no thread of ours runs while servers start
            )
        return self

    def kill(self) -> None:
        """End it with SIGKILL, and wait until it has ended."""
        process, self._process = self._running(), None
        process.kill()
        process.wait()

    def pause(self) -> None:
        """Freeze it with SIGSTOP: its connections stay open, and nothing moves."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on."""
        self._running().send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in order, if it runs; one that has ended by itself says its last words."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is not None:
            print(f"{self.name} ended by itself: {last_words(self.log)}", file=sys.stderr)
            return
        process.send_signal(signal.SIGCONT)
        stop(process)

    def _running(self) -> subprocess.Popen[bytes]:
        """Return the process.

        Raises:
            ProcessError: it was not started, or has ended by itself.
        """
        if self._process is None or self._process.poll() is not None:
            raise ProcessError(f"{self.name} does not run: {last_words(self.log)}")
        return self._process
