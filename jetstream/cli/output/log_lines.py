"""How the events of a log become lines: text for people, or JSON for machines, one object a line.

Words from outside make no line of their own in either, and no field of the JSON: fields are found in our own
text (``stream=%s``), before anything was put into it.
"""

import json
import logging
import math
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from jetstream.cli.output.console import printable
from jetstream.node.settings.node_config import LogFormat

_CONVERSION: Final = re.compile(r"%%|(?:\b(\w+)=)?(%[-+ #0]*\d*(?:\.\d+)?[diouxXeEfFgGcrsa])")
_LITERAL: Final = re.compile(r"\b(\w+)=([\w.-]+)(?=[\s,;:)]|$)")


class LineShape(Protocol):
    """Makes lines, without the line break."""

    def event(self, record: logging.LogRecord, message: str) -> str:
        """Return an event of the log, whose text is ``message``."""

    def notice(self, text: str) -> str:
        """Return what the command itself says."""

    def passed_on(self, node: str, line: str) -> str:
        """Return a line that the process of a node has written, in the same shape."""


class TextLines:
    """Lines for people, times in UTC; those of a traceback are indented below their event."""

    def __init__(self) -> None:
        self._formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        self._formatter.converter = time.gmtime

    def event(self, record: logging.LogRecord, message: str) -> str:
        """See `LineShape.event`; control characters are escaped."""
        record.message = message
        record.asctime = self._formatter.formatTime(record, self._formatter.datefmt)
        parts = [printable(self._formatter.formatMessage(record))]
        parts += [f"    {printable(line)}" for line in _traceback(record)]
        return "\n".join(parts)

    def notice(self, text: str) -> str:
        """See `LineShape.notice`; as it is."""
        return text

    def passed_on(self, node: str, line: str) -> str:
        """See `LineShape.passed_on`; the node's name stands before it."""
        return f"{node}: {line}"


class JsonLines:
    """JSON objects (RFC 8259) in ASCII.

    Their members are ``time`` (RFC 3339, UTC, microseconds), ``level``, ``logger``, ``message``, the fields
    of the event, and ``traceback`` where there is one.
    """

    def event(self, record: logging.LogRecord, message: str) -> str:
        """See `LineShape.event`; a field never takes the place of one of the five."""
        trace = "\n".join(_traceback(record))
        own = _head(record.created, record.levelname, record.name, message)
        return _line(own | ({"traceback": trace} if trace else {}), dict(fields_of(record)))

    def notice(self, text: str) -> str:
        """See `LineShape.notice`; of the logger ``jetstream``."""
        return _line(_head(time.time(), "INFO", "jetstream", text))

    def passed_on(self, node: str, line: str) -> str:
        """See `LineShape.passed_on`; the object gets the ``node_id``."""
        try:
            document = json.loads(line)
        except ValueError:  # the interpreter's own last words
            document = None
        if not isinstance(document, dict):
            document = _head(time.time(), "INFO", "jetstream", line)
        return _line(document, {"node_id": node})


SHAPES: Final[Mapping[LogFormat, LineShape]] = {LogFormat.TEXT: TextLines(), LogFormat.JSON: JsonLines()}


def fields_of(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    """Yield the fields of an event's text: ``name=%s``, as numbers where they are, and ``name=word``."""
    text, values = str(record.msg), record.args
    yield from _LITERAL.findall(text)
    conversions = [found for found in _CONVERSION.finditer(text) if found[2]]
    if not isinstance(values, tuple) or len(values) != len(conversions):
        return  # a mistake of ours, which the message tells
    for found, value in zip(conversions, values, strict=True):
        if found[1]:
            yield found[1], _plain(value, found[2])


def _plain(value: object, conversion: str) -> object:
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    try:
        return conversion % (value,)
    except (TypeError, ValueError):
        return str(value)


def _traceback(record: logging.LogRecord) -> list[str]:
    return logging.Formatter().formatException(record.exc_info).split("\n") if record.exc_info else []


def _head(seconds: float, level: str, logger: str, message: str) -> dict[str, object]:
    moment = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)
    return {
        "time": f"{moment.isoformat(timespec='microseconds')}Z",
        "level": level,
        "logger": logger,
        "message": message,
    }


def _line(document: Mapping[str, object], more: Mapping[str, object] | None = None) -> str:
    """Return both as one object; of equal names the first one's is kept."""
    return json.dumps({**document, **(more or {}), **document}, separators=(",", ":"))
