"""A real nats-server for tests: one child process on loopback, with a port that stays its own.

The port is held by a bound socket of ours for the server's whole life (both sides set SO_REUSEADDR, and only
the server listens), so a restart finds it free and no other process can be given it in between.
Every wait is for a line of the server's own log; nothing sleeps.
"""

import ctypes
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from jetstream.node.nats.embedded_server import find_nats_server

TIMEOUT_SECONDS: Final = 30.0
"""Longest wait for the server to do what it was told; two shared cores can be slow."""

_READY: Final = "Server is ready"
_PR_SET_PDEATHSIG: Final = 1
_libc: Final = ctypes.CDLL(None)


class _ServerLog:
    """Collects the lines of one run of the server as it prints them, on a thread of its own."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._ended = False
        self._thread = threading.Thread(target=self._collect, name="nats-server-log", daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        with self._stream:
            for line in self._stream:
                with self._changed:
                    self._lines.append(line.decode(errors="replace").rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def lines(self) -> tuple[str, ...]:
        with self._changed:
            return tuple(self._lines)

    def wait_for(self, text: str, count: int, timeout_seconds: float) -> bool:
        """Return whether ``count`` lines with ``text`` were printed before the end or the timeout."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._has(text, count), timeout_seconds)
            return self._has(text, count)

    def _has(self, text: str, count: int) -> bool:
        return sum(text in line for line in self._lines) >= count

    def join(self) -> None:
        self._thread.join(TIMEOUT_SECONDS)
        assert not self._thread.is_alive(), "the server's log did not end with the server"


class NatsServer:
    """The real ``nats-server``; a context manager that starts and stops it.

    ``config`` is text in the server's own configuration language, beside the listen address, which is ours:
    ``authorization { token: "t" }``, ``max_payload: 1024``, ``write_deadline: "100ms"``. ``options`` are
    more command-line arguments (``-js``, ``-D``).
    """

    def __init__(self, directory: Path, config: str = "", options: Sequence[str] = ()) -> None:
        """Prepare a server whose files lie in ``directory``; nothing runs before `start`."""
        self._directory = directory
        self._config = config
        self._options = tuple(options)
        self._reservation: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: _ServerLog | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Return ``nats://127.0.0.1:PORT``, without credentials."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the running server."""
        return self._running().pid

    @property
    def running(self) -> bool:
        """Tell whether the process is there (it may be paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log_lines(self) -> tuple[str, ...]:
        """Return what the server has printed since its latest start."""
        return self._log.lines if self._log is not None else ()

    def start(self) -> Self:
        """Start the server, on its earlier port if it had one; return when it accepts connections."""
        assert self._process is None, "the server is running"
        self._reserve_port()
        configuration = self._configuration()
        self._process = subprocess.Popen(
            [find_nats_server(), "-c", str(configuration), *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=stop_with_parent,  # noqa: PLW1509 - one prctl, takes no lock
        )
        assert self._process.stderr is not None
        self._log = _ServerLog(self._process.stderr)
        if not self._log.wait_for(_READY, 1, TIMEOUT_SECONDS):
            said = "\n".join(self.log_lines[-20:])
            self.kill()
            raise AssertionError(f"nats-server did not start:\n{said}")
        return self

    def wait_for_log(self, text: str, *, count: int = 1, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Return when ``count`` lines with ``text`` were printed since the latest start."""
        assert self._log is not None, "the server was never started"
        found = self._log.wait_for(text, count, timeout_seconds)
        assert found, f"nats-server did not say {text!r}:\n" + "\n".join(self.log_lines[-20:])

    def configure(self, config: str) -> None:
        """Change its configuration; it reads that when it starts, or is told to (SIGHUP)."""
        self._config = config
        self._configuration()

    def _configuration(self) -> Path:
        self._directory.mkdir(parents=True, exist_ok=True)
        configuration = self._directory / "nats-server.conf"
        configuration.write_text(f'host: "127.0.0.1"\nport: {self.port}\n{self._config}\n')
        return configuration

    def stop(self) -> None:
        """End the server in order (SIGTERM); the port stays reserved for the next `start`."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once (SIGKILL); its connections break without a word."""
        if self._process is not None:
            self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP), all its threads: connections stay open and nothing moves any more."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let a paused process go on."""
        self._running().send_signal(signal.SIGCONT)

    def restart(self, *, kill: bool = False) -> None:
        """Stop (or kill) the server and start it on the same port."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and give its port back."""
        self.stop()
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def __enter__(self) -> Self:
        """Start the server."""
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _reserve_port(self) -> None:
        if self._reservation is not None:
            return
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reservation.bind(("127.0.0.1", 0))
        self.port = int(self._reservation.getsockname()[1])

    def _end(self, with_signal: signal.Signals) -> None:
        process, self._process = self._running(), None
        process.send_signal(with_signal)
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(TIMEOUT_SECONDS)
        if self._log is not None:
            self._log.join()


def stop_with_parent() -> None:
    """Run in the child: a killed test run must leave no server behind."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
