"""The ``jetstream`` command as a user runs it: one command in this process, or a process of its own."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import PIPE
from types import TracebackType
from typing import Any, Final, Self

from typer.testing import CliRunner, Result

from jetstream.cli.main import app
from tests.support.forked_process import ForkedProcess

REPOSITORY: Final = Path(__file__).resolve().parents[2]
WAIT_SECONDS: Final = 60.0


def jetstream(*arguments: str, nats: str = "", given: bytes | str | None = None) -> Result:
    """Run one command in this process; ``nats`` is the server, ``given`` the standard input."""
    environment = {"JETSTREAM_NATS": nats} if nats else {}
    return CliRunner().invoke(app, list(arguments), env=environment, input=given, catch_exceptions=False)


def succeeded(*arguments: str, nats: str = "", given: bytes | str | None = None) -> str:
    """Run one command that must succeed and return its standard output."""
    result = jetstream(*arguments, nats=nats, given=given)
    assert result.exit_code == 0, result.output
    return result.stdout


def json_lines(text: str) -> list[dict[str, Any]]:
    """Return every line as a JSON object."""
    return [json.loads(line) for line in text.splitlines()]


class CommandProcess:
    """The command as a process of its own; stopped at the end of the block if it still runs."""

    def __init__(
        self,
        *arguments: str,
        nats: str = "",
        environment: Mapping[str, str] | None = None,
        is_forked: bool = True,
    ) -> None:
        """Start it.

        Args:
            arguments: after ``jetstream``.
            nats: the server.
            environment: is added to ours.
            is_forked: from a process that has imported what it needs; else it is started as users start it.
        """
        environment = _environment({**({"JETSTREAM_NATS": nats} if nats else {}), **(environment or {})})
        if is_forked and arguments[0] != "pipeline":
            self._process: subprocess.Popen[bytes] = ForkedProcess(
                "jetstream", arguments, environment=environment, stdin=PIPE, stdout=PIPE, stderr=PIPE
            )
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jetstream", *arguments],
                cwd=REPOSITORY,
                env=environment,
                bufsize=0,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
            )
        self._rest = b""

    def line(self) -> str:
        """Return the next line of its standard output, waiting for it; "" at its end."""
        output = self._process.stdout
        assert output is not None
        while b"\n" not in self._rest:
            ready, _, _ = select.select([output], [], [], WAIT_SECONDS)
            assert ready, f"no line in {WAIT_SECONDS} s, only {self._rest!r}"
            chunk = os.read(output.fileno(), 65536)
            if not chunk:
                break
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def lines_until(self, last: str) -> list[str]:
        """Return the lines up to and with ``last``."""
        lines: list[str] = []
        while not lines or lines[-1] != last:
            line = self.line()
            assert line, f"ended before {last!r}: {lines}, {self.finished()}"
            lines.append(line)
        return lines

    def give(self, text: bytes) -> None:
        """Write to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(text)

    def close_output(self) -> None:
        """Close our end of its standard output, as ``head`` does."""
        assert self._process.stdout is not None
        self._process.stdout.close()

    def signalled(self, number: signal.Signals) -> tuple[int, str, str]:
        """Send a signal and return what `finished` returns."""
        self._process.send_signal(number)
        return self.finished()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def finished(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code and what is left of standard output and error."""
        output, error = self._process.communicate(timeout=WAIT_SECONDS)
        return self._process.returncode, (self._rest + output).decode(), error.decode()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if the test has left it running."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without settings of the machine that runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JETSTREAM_")}
    return {**kept, "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", **added}


def up(data: Path, *arguments: str, **environment: str) -> tuple[CommandProcess, dict[str, str]]:
    """Start ``jetstream up`` on free ports; return it, ready, with its endpoints."""
    process = CommandProcess(
        "up",
        "--data",
        str(data),
        "--port",
        "0",
        "--nats-port",
        "0",
        "--json",
        *arguments,
        environment=environment,
    )
    endpoints: dict[str, str] = {}
    while True:
        line = process.line()
        assert line, process.finished()
        event: Mapping[str, str] = json.loads(line)
        if event["event"] == "ready":
            return process, endpoints
        endpoints[event["endpoint"]] = event["address"]
