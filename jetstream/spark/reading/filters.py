"""The filters of a query that the source applies itself: reading less, exactly. Pure, on Spark's classes.

Offsets and times narrow the range that is read, as the timestamps of a log never decrease; a subject and a
key are left to the nodes. Spark need not repeat a filter that is applied here wholly; it gets all others
back.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from envelope.errors import InvalidSubject
from envelope.subjects import covers, is_literal, validated_pattern
from jetstream.client.read.records import to_timestamp
from jetstream.protocol.requests import NAME_CHARS_MAX

_NEVER_NULL: Final = frozenset(("stream", "partition", "offset", "timestamp", "timestampType", "subject"))


@dataclass(frozen=True, slots=True)
class IntegerBounds:
    """Integers in ``[start, end)``; None is no bound."""

    start: int | None = None
    end: int | None = None

    def within(self, start: int | None, end: int | None) -> "IntegerBounds":
        """Return what is also in that range."""
        return IntegerBounds(_tighter(max, self.start, start), _tighter(min, self.end, end))


def _tighter(choose: Callable[[int, int], int], bound: int | None, other: int | None) -> int | None:
    if bound is None or other is None:
        return other if bound is None else bound
    return choose(bound, other)


@dataclass(frozen=True, slots=True)
class Pushed:
    """The range and the selection that are read of each stream."""

    offsets: IntegerBounds = IntegerBounds()
    times: IntegerBounds = IntegerBounds()
    """Microseconds since the Unix epoch."""
    subject: str | None = None
    """A pattern; None: any."""
    key: str | None = None


def pushed(filters: Iterable[Filter], selected: Pushed) -> tuple[Pushed, list[Filter]]:
    """Return the selection to read, and the filters that Spark has to apply to it.

    Args:
        filters: the query's, all of which hold.
        selected: the selection of the options.
    """
    rest: list[Filter] = []
    for wanted in filters:
        selected, is_done = _push(wanted, selected)
        if not is_done:
            rest.append(wanted)
    return selected, rest


def _push(condition: Filter, selected: Pushed) -> tuple[Pushed, bool]:
    """Return the selection to read, and whether it leaves out all records that the filter leaves out."""
    match condition:
        case IsNotNull(attribute=(name,)):
            return selected, name in _NEVER_NULL
        case EqualTo(attribute=("subject",), value=str(subject)):
            return _push_subject(selected, _literal(subject))
        case StringStartsWith(attribute=("subject",), value=str(prefix)):
            return _push_prefix(selected, prefix)
        case EqualTo(attribute=("key",), value=bytes() | bytearray() as key):
            return _push_key(selected, bytes(key))
        case _:
            return _push_bounds(condition, selected)


# --- offsets and times -------------------------------------------------------------------------------

_RANGES: Final[Mapping[type[Filter], Callable[[int], tuple[int | None, int | None]]]] = {
    EqualTo: lambda value: (value, value + 1),
    EqualNullSafe: lambda value: (value, value + 1),
    GreaterThan: lambda value: (value + 1, None),
    GreaterThanOrEqual: lambda value: (value, None),
    LessThan: lambda value: (None, value),
    LessThanOrEqual: lambda value: (None, value + 1),
}


def _push_bounds(condition: Filter, selected: Pushed) -> tuple[Pushed, bool]:
    bounds = _RANGES.get(type(condition))
    attribute, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
    if bounds is None:
        return selected, False
    if attribute == ("offset",) and isinstance(value, int) and not isinstance(value, bool):
        return replace(selected, offsets=selected.offsets.within(*bounds(value))), True
    if attribute == ("timestamp",) and isinstance(value, datetime) and value.tzinfo is not None:
        return replace(selected, times=selected.times.within(*bounds(to_timestamp(value)))), True
    return selected, False


# --- what nodes leave out ----------------------------------------------------------------------------


def _push_key(selected: Pushed, key: bytes) -> tuple[Pushed, bool]:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return selected, False
    if len(text) > NAME_CHARS_MAX or selected.key not in (None, text):
        return selected, False
    return replace(selected, key=text), True


def _push_subject(selected: Pushed, pattern: str | None) -> tuple[Pushed, bool]:
    """Push a pattern, if there is one: the narrower of two, unless neither has the other in it."""
    before = selected.subject
    if pattern is not None and (before is None or covers(before, pattern)):
        return replace(selected, subject=pattern), True
    return selected, pattern is not None and before is not None and covers(pattern, before)


def _push_prefix(selected: Pushed, prefix: str) -> tuple[Pushed, bool]:
    """Push a prefix: exactly if it ends with a token, and otherwise the tokens that are whole in it."""
    tokens, dot, last = prefix.rpartition(".")
    whole = _literal(tokens) if dot else None
    narrowed, is_pushed = _push_subject(selected, None if whole is None else f"{whole}.>")
    return narrowed, is_pushed and not last


def _literal(subject: str) -> str | None:
    """Return ``subject`` if it is one, and nothing else as a pattern."""
    try:
        validated_pattern(subject)
    except InvalidSubject:
        return None
    return subject if is_literal(subject) else None
