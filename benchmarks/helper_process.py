"""Programs of the benchmark's own as child processes: lines of JSON come out, lines of words go in.

Readers, proxies and swarms of sockets run beside what they measure, never inside it, and say when they are
ready, so that a run begins for all of them at the same moment of the clock that all processes share.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, Final

from benchmarks.machine import REPOSITORY
from benchmarks.processes import ProcessError, stop, stop_with_parent

HEAR_SECONDS_MAX: Final = 120.0
"""Beyond what a run takes: a helper that is silent for longer hangs."""

# What helpers say is JSON of a shape for each event.
Event = dict[str, Any]


def announce(event: str, **fields: object) -> None:
    """Tell the process that started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


@dataclass(slots=True)
class HelperProcess:
    """One running helper."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    heard: bytearray = field(default_factory=bytearray)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def say(self, *words: object) -> None:
        """Send one line."""
        assert self.process.stdin is not None, "a helper is started with a pipe"
        self.process.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def hear(self, event: str, seconds_max: float = HEAR_SECONDS_MAX) -> Event:
        """Return the next event, which must be of that name.

        Raises:
            ProcessError: the helper ended, is silent, or says something else.
        """
        heard: Event = json.loads(self._line(time.monotonic() + seconds_max))
        if heard["event"] != event:
            raise ProcessError(f"a helper said {heard} instead of {event!r}")
        return heard

    def _line(self, deadline: float) -> bytes:
        assert self.process.stdout is not None, "a helper is started with a pipe"
        while b"\n" not in self.heard:
            readable, _, _ = select.select(
                [self.process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            received = os.read(self.process.stdout.fileno(), 1 << 20) if readable else b""
            if not received:
                raise ProcessError(f"a helper {'ended' if readable else 'is silent'}: {self._last_words()}")
            self.heard += received
        line, _, rest = self.heard.partition(b"\n")
        self.heard[:] = rest
        return bytes(line)

    def _last_words(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-2000:]


@contextmanager
def helper(module: str, *words: object) -> Iterator[HelperProcess]:
    """Run ``python -m benchmarks.<module>`` while the block runs."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
            cwd=REPOSITORY,
            preexec_fn=stop_with_parent,  # noqa: PLW1509 - no thread of ours runs while helpers start
        ) as process,
    ):
        try:
            yield HelperProcess(process, errors)
        finally:
            stop(process)
