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
from typing import Final

from jetstream.cli.output.console import printable

_STANDARD_ERROR: Final = 2
_LINES_MAX: Final = 10_000
"""How many wait for the thread."""

_LAST_SECONDS: Final = 1.0
"""How long the end of the process waits for lines to be written."""


class BackgroundLines:
    """Writes lines in order, on a thread of its own; all methods return at once, but `flush`."""

    def __init__(self, file: int = _STANDARD_ERROR, lines_max: int = _LINES_MAX) -> None:
        """``file``: the descriptor, as a Python file that a thread waits in cannot be left at the end."""
        self._file = file
        self._lines: queue.Queue[str | threading.Event] = queue.Queue(lines_max)
        self._dropped = Counter[int]()
        """By the thread that wanted to say them: each counts its own."""
        self._told = 0
        threading.Thread(target=self._write, name="standard-error", daemon=True).start()

    def say(self, text: str) -> None:
        """Write ``text``, which ends without a line break, and may have some within."""
        try:
            self._lines.put_nowait(text)
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
                dropped = sum(tuple(self._dropped.values()))
                if self._lines.empty() and dropped > self._told:
                    self._put(f"{dropped - self._told} lines were dropped here: nobody read")
                    self._told = dropped
            except OSError:  # nobody is left to read
                self._dropped[threading.get_ident()] += 1

    def _put(self, line: str) -> None:
        rest = f"{line}\n".encode(errors="backslashreplace")
        while rest:
            rest = rest[os.write(self._file, rest) :]


class LogHandler(logging.Handler):
    """Sends the log to `BackgroundLines`, one line per event, times in UTC.

    Control characters of names, addresses and errors that came from outside are escaped, so that nobody
    writes lines of his own into the log. The lines of a traceback are indented below their event.
    """

    def __init__(self, lines: BackgroundLines) -> None:
        super().__init__()
        self._lines = lines
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        self.setFormatter(formatter)
        self._traceback = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the event over."""
        formatter = self.formatter
        assert formatter is not None, "it is set when the handler is made"
        record.message = record.getMessage()
        record.asctime = formatter.formatTime(record, formatter.datefmt)
        parts = [printable(formatter.formatMessage(record))]
        if record.exc_info:
            trace = self._traceback.formatException(record.exc_info)
            parts += [f"    {printable(line)}" for line in trace.split("\n")]
        self._lines.say("\n".join(parts))

    def flush(self) -> None:
        """See `BackgroundLines.flush`; called at the end of the process, too."""
        self._lines.flush()
