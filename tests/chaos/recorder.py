"""Where everybody who takes part writes what happened: the history in memory, and line by line in a file."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.group_history import GroupEvent, encode_group_event
from tests.support.history import Acked, Event, Note, encode


class Recorder:
    """One history; a context manager that closes its file."""

    def __init__(self, path: Path) -> None:
        """Write to ``path``, which is made."""
        self.events: list[Event] = []
        self.group_events: list[GroupEvent] = []
        self.acked = 0
        self.begun = time.monotonic()
        self._file = path.open("w")
        self._changed = asyncio.Event()
        self._heard = asyncio.Event()

    def now(self) -> float:
        """Return seconds since the beginning."""
        return time.monotonic() - self.begun

    def record(self, event: Event) -> None:
        """Put the next event down."""
        self.events.append(event)
        self._file.write(encode(event) + "\n")
        if isinstance(event, Acked):
            self.acked += 1
            self._changed.set()

    def record_of_group(self, event: GroupEvent) -> None:
        """Put down what a member has said; its time may be a little earlier than that of the last one."""
        self.group_events.append(event)
        self._file.write(encode_group_event(event) + "\n")
        self._heard.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so of what the members have said; the caller bounds it."""
        while not is_so():
            self._heard.clear()
            await self._heard.wait()

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
