"""A process of a module of ours that need not import anything: `tests.support.fork_server` forks it."""

import atexit
import ctypes
import functools
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.support.fork_server import REQUEST_BYTES_MAX

File = int | IO[bytes] | None

_REPOSITORY: Final = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER: Final = 36
_SHARED: Final = -1
"""What `subprocess.Popen` has in place of a file that the child shares with us."""

_libc: Final = ctypes.CDLL(None, use_errno=True)


class ForkedProcess(subprocess.Popen[bytes]):
    """``python -m MODULE ARGUMENT…``, and all that `subprocess.Popen` can do with it."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        stdin: File = None,
        stdout: File = None,
        stderr: File = None,
    ) -> None:
        """Start it in the repository; without an ``environment`` it has ours. It ends when we do.

        Args:
            module: what is run; it finds imported what a node imports.
            arguments: its own.
            environment: all of it; ``PYTHON…`` in there has no effect.
            stdin: as for `subprocess.Popen`.
            stdout: the same.
            stderr: the same.
        """
        self._request = {
            "module": module,
            "arguments": list(arguments),
            "environment": dict(os.environ if environment is None else environment),
        }
        command = [sys.executable, "-m", module, *arguments]
        super().__init__(command, bufsize=0, stdin=stdin, stdout=stdout, stderr=stderr)

    def _execute_child(self, *arguments: Any) -> None:  # noqa: ANN401 - whatever Popen hands over
        """Have it forked, where Popen starts a program."""
        assert len(arguments) == 23, "Popen has other arguments than in Python 3.11 to 3.14"
        ends = arguments[10:16]  # of three pipes, the child's and ours, ours and the child's, twice
        files = (ends[0], ends[3], ends[5])
        shared = [number if file == _SHARED else file for number, file in enumerate(files)]
        try:
            self.pid = _fork_server().fork(json.dumps(self._request).encode(), shared)
            self._child_created = True
        finally:
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]  # as Popen's own does


class _ForkServer:
    """The process that forks; it ends with us."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        with theirs:
            command = [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                cwd=_REPOSITORY,
                env={**os.environ, "PYTHONPATH": str(_REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # buffered, as what is no terminal is
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def fork(self, request: bytes, files: list[int]) -> int:
        """Return the id of a new child of this process, with these files for its standard ones."""
        with self._one_at_a_time:
            _adopt_orphans(is_on=True)
            try:
                socket.send_fds(self._requests, [request], files)
                pid = int(self._requests.recv(REQUEST_BYTES_MAX) or "0")
            finally:
                _adopt_orphans(is_on=False)
        assert pid, f"the fork server has ended: {self._process.wait()}"
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # raises unless it is our child
        return pid

    def _end(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def _fork_server() -> _ForkServer:
    return _ForkServer()


def _adopt_orphans(*, is_on: bool) -> None:
    """Become the parent of descendants whose parent has ended, or no longer."""
    assert _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0) == 0, os.strerror(ctypes.get_errno())
