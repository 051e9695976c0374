"""Builds and runs the C load generator; what it prints becomes typed results.

The generator needs nothing but libc.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypedDict, cast

from benchmarks.compiler import BUILD, compiled
from benchmarks.machine import REPOSITORY

SOURCE: Final = Path(__file__).with_name("loadgen.c")
BINARY: Final = BUILD / "loadgen"
FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror=implicit-function-declaration")


BARE_ANSWER: Final = '{"stream":"BARE","seq":1}'
"""As long as a real ack, near enough."""

STORE_IN_PYTHON: Final = (sys.executable, "-m", "benchmarks.bare_store")
"""Does what the generator does as `store` and as `copy`, in Python."""


class LoadGeneratorError(Exception):
    """The generator gave up: its own words are the message."""


class Percentiles(TypedDict):
    """A histogram's summary in microseconds."""

    count: int
    mean: float
    min: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


@dataclass(frozen=True, slots=True)
class Address:
    """Where a NATS server listens."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """The form NATS clients take."""
        return f"nats://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Load:
    """One load: ``connections`` times ``window`` messages in flight; with a ``rate`` at most so many."""

    connections: int
    window: int
    size_bytes: int
    subjects: int = 1
    seconds: float = 10.0
    warmup_seconds: float = 2.0
    probe_file: Path | None = None
    """Appended to and fdatasynced between messages; needs one connection with one message in flight."""
    probe_every: int = 20
    rate: float | None = None
    """Messages a second by the clock, over one connection; latency counts from when a message was due."""
    asks: bool = True
    """False asks for no answer: a message counts as acked when the NATS server has taken it, no more."""
    payload: Path | None = None
    """What every message is, in place of ``size_bytes`` random bytes."""
    records: int = 1
    """How many a stream makes of each message; its ack names the last one's sequence."""

    @property
    def in_flight(self) -> int:
        """Messages waiting for their answer at any time; with a rate the most there may be."""
        return self.connections * self.window

    def arguments(self) -> list[str]:
        """Return the generator's command line for this load, without the server."""
        pairs: dict[str, object] = {
            "connections": self.connections,
            "window": self.window,
            "size": self.size_bytes,
            "subjects": self.subjects,
            "seconds": self.seconds,
            "warmup": self.warmup_seconds,
        }
        if self.probe_file is not None:
            pairs |= {"file": self.probe_file, "probe-every": self.probe_every}
        if self.rate is not None:
            pairs["rate"] = self.rate
        if not self.asks:
            pairs["confirm"] = "pong"
        if self.payload is not None:
            pairs["payload"] = self.payload
        return [f"--{key}={value}" for key, value in pairs.items()]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What the generator counted; rates and latencies cover the measured seconds, counts the whole run."""

    seconds: float
    cpu_seconds: float
    measured: int
    """Messages acked inside the measured seconds."""
    published: int
    acked: int
    errors: int
    no_responders: int
    duplicates: int
    stray: int
    """Answers to a slot that waits for none (for instance a second stream's ack)."""
    unanswered: int
    sequence_sum: int
    """Sum of all acked sequences, modulo 2**64: n(n+1)/2 of a stream whose every record was acked once."""
    first_error: str
    latency: Percentiles
    fdatasync: Percentiles
    asked: bool = True
    """False: "acked" is what the NATS server took; nobody said what was stored, nor where."""
    records: int = 1
    """Of each message."""

    @property
    def rate(self) -> float:
        """Acked messages per second."""
        return self.measured / self.seconds

    @property
    def cpu_share(self) -> float:
        """The generator's share of one core: near 1.0 it would be the bottleneck."""
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class FsyncResult:
    """A loop of write + fdatasync on one growing file."""

    size_bytes: int
    seconds: float
    duration: Percentiles

    @property
    def rate(self) -> float:
        """Syncs per second."""
        return self.duration["count"] / self.seconds


def build() -> Path:
    """Compile the generator unless the binary is newer than its source; return the binary's path."""
    return compiled(SOURCE, BINARY, FLAGS)


def publish(address: Address, subject: str, load: Load, on_event: Callable[[str], None]) -> LoadResult:
    """Run one load to its end; ``on_event`` hears "measuring" and "measured" as they happen.

    With ``load.subjects`` of 1 messages go to ``subject``, otherwise to ``subject.0``, ``subject.1``, …

    Raises:
        LoadGeneratorError: it lost its connection, met a protocol error or was stopped.
    """
    line = _run("publish", ["--subject", subject, *_target(address), *load.arguments()], on_event)
    return LoadResult(
        seconds=_number(line, "seconds") - _number(line, "probe_seconds"),
        cpu_seconds=_number(line, "cpu_seconds"),
        first_error=str(line["first_error"]),
        latency=cast("Percentiles", line["latency_us"]),
        fdatasync=cast("Percentiles", line["fdatasync_us"]),
        asked=load.asks,
        records=load.records,
        **{key: int(_number(line, key)) for key in _COUNTS},
    )


def fsync_loop(file: Path, size_bytes: int, seconds: float, warmup_seconds: float) -> FsyncResult:
    """Append ``size_bytes`` and fdatasync, over and over, on a file that is removed afterwards."""
    arguments = [
        f"--file={file}",
        f"--size={size_bytes}",
        f"--seconds={seconds}",
        f"--warmup={warmup_seconds}",
    ]
    try:
        line = _run("fsync", arguments, lambda _event: None)
    finally:
        file.unlink(missing_ok=True)
    return FsyncResult(size_bytes, _number(line, "seconds"), cast("Percentiles", line["fdatasync_us"]))


@contextmanager
def responder(address: Address, subject: str, answer: str = BARE_ANSWER) -> Iterator[int]:
    """Answer every request on ``subject`` from one further process while the block runs; yields its pid."""
    with _serving("respond", ["--subject", subject, "--answer", answer, *_target(address)]) as (pid, _):
        yield pid


@contextmanager
def store(
    address: Address,
    subject: str,
    file: Path,
    sync: str,
    copies: Sequence[int],
    program: Sequence[str] = (),
) -> Iterator[int]:
    """Answer what comes on ``subject`` once it is in ``file`` and in the copies, while the block runs.

    Args:
        address: of the NATS server.
        subject: what to store.
        file: made anew; the payloads alone, one behind the other.
        sync: "always" or "os".
        copies: ports of `copy`.
        program: in place of the generator.

    Yields its pid.
    """
    arguments = ["--subject", subject, *_target(address), f"--file={file}", f"--sync={sync}"]
    with _serving("store", [*arguments, *(f"--copy={port}" for port in copies)], program) as (pid, _):
        yield pid


@contextmanager
def copy(file: Path, sync: str, program: Sequence[str] = ()) -> Iterator[tuple[int, int]]:
    """Keep in ``file`` what one store sends, each group behind its length; yields its pid and its port."""
    with _serving("copy", [f"--file={file}", f"--sync={sync}"], program) as (pid, ready):
        yield pid, int(_number(ready, "port"))


_COUNTS: Final = (
    "measured",
    "published",
    "acked",
    "errors",
    "no_responders",
    "duplicates",
    "stray",
    "unanswered",
    "sequence_sum",
)


def _target(address: Address) -> list[str]:
    return [f"--host={address.host}", f"--port={address.port}"]


def _run(mode: str, arguments: list[str], on_event: Callable[[str], None]) -> dict[str, object]:
    result: dict[str, object] | None = None
    with _started(mode, arguments) as (process, errors):
        assert process.stdout is not None
        for text in process.stdout:
            line = cast("dict[str, object]", json.loads(text))
            if line["event"] == "result":
                result = line
            else:
                on_event(str(line["event"]))
        if process.wait() or result is None:
            raise LoadGeneratorError(_words(process, errors))
    return result


@contextmanager
def _serving(
    mode: str, arguments: list[str], program: Sequence[str] = ()
) -> Iterator[tuple[int, dict[str, object]]]:
    """Run what serves until the block is left; yields its pid and what it said when it was ready."""
    with _started(mode, arguments, program) as (process, errors):
        assert process.stdout is not None
        ready = process.stdout.readline()
        if not ready:
            raise LoadGeneratorError(_words(process, errors))
        yield process.pid, json.loads(ready)


def _words(process: subprocess.Popen[str], errors: IO[str]) -> str:
    """What the generator said before it ended."""
    code = process.wait()
    errors.seek(0)
    return errors.read().strip() or f"loadgen ended with {code}"


@contextmanager
def _started(
    mode: str, arguments: list[str], program: Sequence[str] = ()
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Start the generator, or what takes its place; stopped when the block is left, however that happens."""
    command = [*(program or (str(build()),)), mode, *arguments]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=REPOSITORY
        ) as process,
    ):
        try:
            yield process, errors
        finally:
            if process.poll() is None:
                process.terminate()


def _number(line: dict[str, object], key: str) -> float:
    value = line[key]
    assert isinstance(value, int | float), f"{key} of the generator is no number: {value!r}"
    return value
