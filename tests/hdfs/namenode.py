"""The namenode that ``with_hdfs`` has started, as a process that a test kills, holds and starts."""

import os
import select
import signal
from dataclasses import dataclass
from pathlib import Path

_CLASS = "org.apache.hadoop.hdfs.server.namenode.NameNode"


@dataclass(frozen=True, slots=True)
class Namenode:
    """A process whose id is in a file, where ``with_hdfs`` looks for whom to end."""

    scratch: Path

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._pid, number)

    def kill(self) -> None:
        """Kill it; returns when it has ended."""
        process = os.pidfd_open(self._pid)
        try:
            self.send(signal.SIGKILL)
            select.select([process], [], [])
        finally:
            os.close(process)

    def start(self) -> None:
        """Start it again, on the same port and directory; it takes a while until it answers."""
        java = f"{os.environ['JAVA_HOME']}/bin/java"
        log = str(self.scratch / "namenode.log")
        pid = os.posix_spawn(
            java,
            [java, _CLASS],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_APPEND, 0),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        self._pid_file.write_text(str(pid))

    @property
    def _pid(self) -> int:
        return int(self._pid_file.read_text())

    @property
    def _pid_file(self) -> Path:
        return self.scratch / "namenode.pid"
