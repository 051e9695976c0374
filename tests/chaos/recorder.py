"""Where everybody who takes part writes what happened: the history in memory, and line by line in a file."""

import asyncio
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.history import Acked, Event, Note, encode


class Recorder:
    """One history; a context manager that closes its file."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``, which is made."""
        self.events: list[Event] = []
        self.acked = 0
        self._begun = time.monotonic()
        self._file = path.open("w")
        self._changed = asyncio.Event()

    def now(self) -> float:
        """Return seconds since the beginning."""
        return time.monotonic() - self._begun

    def record(self, event: Event) -> None:
        """Put the next event down."""
        self.events.append(event)
        self._file.write(encode(event) + "\n")
        if isinstance(event, Acked):
            self.acked += 1
            self._changed.set()

    def note(self, text: str) -> None:
        """Say what is done to the cluster."""
        self.record(Note(self.now(), text))
        self._file.flush()

    async def more_acks(self, count: int, seconds: float) -> bool:
        """Wait for so many more acks, at most so long; return whether they came."""
        wanted = self.acked + count
        try:
            async with asyncio.timeout(seconds):
                while self.acked < wanted:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
