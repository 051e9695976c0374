"""Places in a stream: as an application names them, and as people write them. Pure.

A place that is relative, so many offsets or so long ago, has a minus: it is resolved where the end of the
stream is known, and the time.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeVar

from envelope.errors import RequestError
from envelope.types import Offset
from jetstream.protocol.durations import parse_duration
from jetstream.protocol.request_base import INTEGER_MAX


@dataclass(frozen=True, slots=True)
class Txid:
    """A place in a stream: the first record whose transaction id is at least ``value``."""

    value: int


Place = Literal["earliest", "latest"] | int | datetime | timedelta
"""An end of the log, an offset, below 0 so many offsets before the high watermark, a moment, or, below 0, so
long before now."""
Start = Place | Txid
End = Literal["latest"] | int | datetime | timedelta | None

PlaceT = TypeVar("PlaceT", Place, Start, End)
AnyT = TypeVar("AnyT")

_INTEGER: Final = re.compile(r"(?!-0+$)-?[0-9]{1,19}")
"""Without -0: that would be offset 0, and not the end."""
_TXID: Final = re.compile(r"[+-]?[0-9]{1,19}")
_FORMS: Final = (
    "earliest, latest, an offset, -10 (so many before the end), -1h (so long ago) or an ISO 8601 time"
)


def parse_start(text: str) -> Start:
    """Return the place at which to begin.

    Digits are an offset, with a minus so many before the end; a duration with a unit and a minus is so long
    ago; ``txid:42`` is a transaction id; anything else but ``earliest`` and ``latest`` is ISO 8601
    (``2026-03-01``, ``2026-03-01T12:00:00Z``), in UTC unless it says otherwise.

    Raises:
        RequestError: none of these.
    """
    kind, colon, number = text.strip().partition(":")
    if (kind, colon) != ("txid", ":"):
        return _parse_place(text.strip())
    if not _TXID.fullmatch(number):
        raise RequestError(f"{text!r}: a transaction id is an integer, like txid:42")
    return validated_start(Txid(int(number)))


def parse_end(text: str) -> Literal["latest"] | int | datetime | timedelta:
    """Return the place, exclusive, at which to stop: as `parse_start`; ``end`` is what is committed now.

    Raises:
        RequestError: none of these, a transaction id, or ``earliest``, before which there is nothing to read.
    """
    place = _parse_place("latest" if text.strip() == "end" else text.strip())
    if place == "earliest":
        raise RequestError("earliest is before every record")
    return place


def _parse_moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def validated_start(start: Start) -> Start:
    """Return ``start``.

    Raises:
        RequestError: an offset or a transaction id that is no 64-bit integer, a datetime without a time zone,
            a timedelta above 0, or an unknown word.
    """
    if not isinstance(start, Txid):
        return _validated(start, ("earliest", "latest"))
    if not -INTEGER_MAX - 1 <= start.value <= INTEGER_MAX:
        raise RequestError(f"{start!r} is not a 64-bit integer")
    return start


def validated_end(end: End) -> End:
    """Return ``end``; raises as `validated_start`."""
    return _validated(end, ("latest", None))


def named_offset(start: Start) -> Offset | None:
    """Return the offset that a valid ``start`` names; None for a place that a node knows."""
    return Offset(start) if isinstance(start, int) and start >= 0 else None


def before_end(count: int, log_start_offset: Offset, high_watermark: Offset) -> Offset:
    """Return the offset that an int below 0 means, which is not before the log start."""
    return Offset(max(log_start_offset, high_watermark + count))


def since(place: AnyT, now: datetime) -> AnyT | datetime:
    """Return the moment that a timedelta means at ``now``, and any other place as it is."""
    if not isinstance(place, timedelta):
        return place
    try:
        return now + place
    except OverflowError:  # before every record, as any moment of the year 1
        return datetime.min.replace(tzinfo=UTC)


def _validated(place: PlaceT, words: tuple[str | None, ...]) -> PlaceT:
    if isinstance(place, datetime) and place.tzinfo is None:
        raise RequestError(f"{place!r} has no time zone: which moment is meant?")
    if isinstance(place, timedelta) and place > timedelta(0):
        raise RequestError(f"{place!r} is yet to come: so long ago has a minus")
    if isinstance(place, int) and (isinstance(place, bool) or abs(place) > INTEGER_MAX):
        raise RequestError(f"{place!r} is not an offset")
    if not isinstance(place, int | datetime | timedelta) and place not in words:
        raise RequestError(f"{place!r} is neither an offset, a datetime, a timedelta nor one of {words}")
    return place


def _parse_place(text: str) -> Place:
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    try:
        if _INTEGER.fullmatch(text):
            return _validated(int(text), ())
        # Without a unit it would be a number of offsets.
        if text.startswith("-") and not text[-1].isdigit():
            return -parse_duration(text[1:])
        return _parse_moment(text)
    except (RequestError, OverflowError, ValueError):
        raise RequestError(f"{text!r} is no place in a stream: use {_FORMS}") from None
