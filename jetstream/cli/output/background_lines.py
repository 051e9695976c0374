"""Lines on standard error from a process that must not wait for who reads them.

A pipe that nobody reads takes 64 KiB and then holds up its writer for ever: a node would stop in the middle
of its event loop, or of its disk thread. So a thread of its own writes, and lines for which there is no room
are counted, and said once there is.
"""

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from jetstream.cli.output.log_lines import LineShape, TextLines
from jetstream.node.runtime.token_bucket import TokenBucket

_STANDARD_ERROR: Final = 2
_LINES_MAX: Final = 10_000
"""How many wait for the thread."""

_ALIKE_AT_ONCE: Final = 1000
_ALIKE_PER_SECOND: Final = 10.0

_LAST_SECONDS: Final = 1.0
"""How long the end of the process waits for lines to be written."""


class BackgroundLines:
    """Writes lines in order, on a thread of its own; all methods return at once, but `flush`.

    Attributes:
        shape: of all lines; may be replaced at any time.
    """

    def __init__(self, file: int = _STANDARD_ERROR, lines_max: int = _LINES_MAX) -> None:
        """``file``: the descriptor, as a Python file that a thread waits in cannot be left at the end."""
        self.shape: LineShape = TextLines()
        self._file = file
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(lines_max)
        self._dropped = Counter[int]()
        """By the thread that wanted to say them: each counts its own."""
        self._told = 0
        threading.Thread(target=self._write, name="standard-error", daemon=True).start()

    @property
    def dropped(self) -> int:
        """How many were not written, as nobody read. Any thread may ask."""
        return sum(tuple(self._dropped.values()))

    def say(self, text: str) -> None:
        """Write what the command itself says."""
        self.write(self.shape.notice(text))

    def pass_on(self, node: str, line: str) -> None:
        """Write a line of the process of a node."""
        self.write(self.shape.passed_on(node, line))

    def write(self, line: str) -> None:
        """Write ``line`` as it is; it ends without a line break, and may have some within."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped[threading.get_ident()] += 1

    def flush(self) -> None:
        """Wait a second at most until all is written."""
        written = threading.Event()
        try:
            self._lines.put_nowait(written)
        except queue.Full:
            return  # nobody reads
        written.wait(_LAST_SECONDS)

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                self._put(line)
                dropped = self.dropped
                if self._lines.empty() and dropped > self._told:
                    self._put(
                        self.shape.notice(f"{dropped - self._told} lines were dropped here: nobody read")
                    )
                    self._told = dropped
            except OSError:  # nobody is left to read
                self._dropped[threading.get_ident()] += 1

    def _put(self, line: str) -> None:
        rest = f"{line}\n".encode(errors="backslashreplace")
        while rest:
            rest = rest[os.write(self._file, rest) :]


class LineRates:
    """Admits so many lines of one kind at once, and then so many a second: peers may cause any number."""

    def __init__(self, at_once: int = _ALIKE_AT_ONCE, per_second: float = _ALIKE_PER_SECOND) -> None:
        self._at_once = at_once
        self._per_second = per_second
        self._buckets: dict[str, TokenBucket] = {}
        self._withheld = Counter[str]()

    def admitted(self, kind: str, now: float) -> int | None:
        """Return how many of that kind were withheld before this one; None: this one is, too."""
        bucket = self._buckets.get(kind)
        if bucket is None:
            bucket = self._buckets[kind] = TokenBucket(self._at_once, self._per_second, now)
        if not bucket.take(now):
            self._withheld[kind] += 1
            return None
        return self._withheld.pop(kind, 0)


class LogHandler(logging.Handler):
    """Sends the log to `BackgroundLines`, in their shape.

    Of events that differ in their arguments alone a thousand are written at once, and then ten a second; the
    next one tells how many were not. Debugging has all, and so have events that are not ``is_limited``.
    """

    def __init__(self, lines: BackgroundLines, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._lines = lines
        self._clock = clock
        self._rates = LineRates()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the event over."""
        withheld: int | None = 0
        if record.levelno > logging.DEBUG and getattr(record, "is_limited", True):
            withheld = self._rates.admitted(str(record.msg), self._clock())
        if withheld is None:
            return
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # a mistake of ours, which must not end what was to be logged
            message = f"{record.msg} with other arguments: {record.args}"
        message += f" (and {withheld} like it)" if withheld else ""
        self._lines.write(self._lines.shape.event(record, message))

    def flush(self) -> None:
        """See `BackgroundLines.flush`; called at the end of the process, too."""
        self._lines.flush()
