"""Parts of the commands that stay in the foreground: signals, a NATS server of their own, their messages."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envelope.errors import UnavailableError
from jetstream.cli.output.console import notice, print_json, print_result
from jetstream.cli.serve.data_directory import EMBEDDED_NATS_DIRECTORY
from jetstream.node.nats.embedded_server import EmbeddedNatsServer

_STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Embedded:
    """A NATS server of our own: inside which data directory, on which port."""

    data: Path
    port: int


@contextmanager
def signals_set(stop: asyncio.Event, on_signal: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Set ``stop`` at the first signal; the second one is the interpreter's own again and ends at once.

    Args:
        stop: to be waited for.
        on_signal: called at the first signal.
    """
    loop = asyncio.get_running_loop()

    def first_signal() -> None:
        stop.set()
        on_signal()
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, first_signal)
    try:
        yield
    finally:
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)


class Interruptible:
    """A block that a signal may end before it is through."""

    def __init__(self) -> None:
        self._patience: asyncio.Timeout | None = None
        self._is_interrupted = False

    def interrupt(self) -> None:
        """End the block, if it is being waited for, or as soon as it is."""
        self._is_interrupted = True
        if self._patience is not None:
            self._patience.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def interruptible(self) -> AsyncIterator[None]:
        """Cancel what is awaited inside when `interrupt` is called, and go on behind the block."""
        patience = asyncio.timeout(0 if self._is_interrupted else None)
        try:
            async with patience:
                self._patience = patience
                try:
                    yield
                finally:
                    self._patience = None
        except TimeoutError:
            if not patience.expired():
                raise


@contextmanager
def end_of_server_sets(stop: asyncio.Event, server: EmbeddedNatsServer, embedded: Embedded) -> Iterator[None]:
    """Set ``stop`` if the embedded server ends before us: nobody else would start it again.

    Raises:
        UnavailableError: at the end of the block, if it did.
    """
    loop = asyncio.get_running_loop()
    process = os.pidfd_open(server.pid)
    ended: list[int] = []

    def on_end() -> None:
        loop.remove_reader(process)
        ended.append(server.pid)
        stop.set()

    loop.add_reader(process, on_end)
    try:
        yield
    finally:
        loop.remove_reader(process)
        os.close(process)
    if ended:
        log = embedded.data / EMBEDDED_NATS_DIRECTORY / "nats-server.log"
        raise UnavailableError(f"the embedded NATS server (process {ended[0]}) has ended: see {log}")


def report(event: str, as_json: bool) -> None:
    """Print an event that has no details."""
    print_result({"event": event}, event, as_json)


def say_endpoint(name: str, address: str, as_json: bool) -> None:
    """Print where the node listens, or keeps its data."""
    print_result({"event": "endpoint", "endpoint": name, "address": address}, f"{name:<8} {address}", as_json)


def report_stopping(as_json: bool, say: Callable[[str], None] = notice) -> None:
    """Print that the end has begun; ``say`` prints for people."""
    if as_json:
        print_json({"event": "stopping"})
    else:
        say("stopping (again to end at once)")
