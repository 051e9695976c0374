"""What a member process is told to do, and how it says what happens."""

import json
import os
import time
from dataclasses import asdict, dataclass

from tests.support.group_history import GroupEvent, encode_group_event


@dataclass(frozen=True, slots=True)
class Task:
    """What a member process is to do.

    Attributes:
        name: what the process is called in the history; no other one ever is.
        group: that it joins.
        streams: that it subscribes to.
        ways: for the port of every node the one at which this process reaches it.
        begun: the monotonic clock when the history began, in seconds.
        session_ms: its session timeout.
        rebalance_ms: its rebalance timeout.
        again: how likely a request is sent once more, between 0 and 1.
        gated: whether it waits for a line on its standard input before each commit.
        seed: of what it draws.
        is_library: whether it consumes with the client library; if not it asks by itself.
    """

    name: str
    group: str
    streams: list[str]
    ways: dict[int, int]
    begun: float
    session_ms: int = 3_000
    rebalance_ms: int = 10_000
    again: float = 0.0
    gated: bool = False
    seed: str = ""
    is_library: bool = False

    def encode(self) -> str:
        """Return it as a command line has it."""
        return json.dumps(asdict(self))


def read_task(text: str) -> Task:
    """Return what `Task.encode` wrote."""
    parts = json.loads(text)
    parts["ways"] = {int(port): way for port, way in parts["ways"].items()}
    return Task(**parts)


@dataclass
class Journal:
    """Where the process says what happens."""

    task: Task
    _attempts: int = 0

    def now(self) -> float:
        """Seconds since the history began."""
        return time.monotonic() - self.task.begun

    def say(self, event: GroupEvent) -> None:
        """Tell the harness, at once: who is killed has said it."""
        os.write(1, f"{encode_group_event(event)}\n".encode())

    def attempt(self) -> str:
        """A name for an attempt to commit."""
        self._attempts += 1
        return f"{self.task.name}.{self._attempts}"
