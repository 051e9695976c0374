"""Durations as people write them."""

import re
from datetime import timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from envelope.errors import RequestError

_SHORT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_UNITS: Final = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_ISO: Final = TypeAdapter(timedelta)


def parse_duration(text: str) -> timedelta:
    """Return a duration: ISO 8601 (``P7D``), seconds (``120``), or ``500ms``, ``90s``, ``15m``, ``7d``.

    Raises:
        RequestError: none of these, or more than a billion days.
    """
    text = text.strip()
    try:
        found = _SHORT.fullmatch(text)
        if found is not None:
            return float(found[1]) * _UNITS[found[2]]
        if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
            return timedelta(seconds=float(text))
        duration = _ISO.validate_python(text) if text[:1] in ("P", "p") else None
    except (ValidationError, OverflowError):
        duration = None
    if duration is None or duration < timedelta(0):
        raise RequestError(f"{text!r} is not a duration: use seconds, 500ms, 15m, 2h, 7d or ISO 8601 (P7D)")
    return duration
