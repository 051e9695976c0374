"""Values of options as people and Spark write them; pure."""

import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from envelope.spark_errors import InvalidOption
from jetstream.protocol.request_base import INTEGER_MAX

Word = TypeVar("Word", bound=str)

_QUANTITY: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)")
_SECONDS: Final = {
    "": 0.001,
    "us": 1e-6,
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
"""Spark's units of time; a bare number is in milliseconds."""
_BYTES: Final = {
    unit: 1 << (10 * power)
    for power, letter in enumerate(("", "k", "m", "g", "t", "p"))
    for unit in (letter, f"{letter}b", *((f"{letter}ib",) if letter else ()))
}
"""Spark's units of size: all are powers of 1024."""


def flag(option: str, text: str) -> bool:
    """Return ``true`` or ``false``.

    Raises:
        InvalidOption: it is neither.
    """
    return one_of(option, text, ("true", "false")) == "true"


def one_of(option: str, text: str, words: Sequence[Word]) -> Word:
    """Return one of ``words``, whose case does not matter.

    Raises:
        InvalidOption: it is none of them.
    """
    for word in words:
        if text.strip().lower() == word.lower():
            return word
    raise InvalidOption(f"{option}: {text!r}: there are {', '.join(words)}")


def count(option: str, text: str, *, least: int = 1, most: int = INTEGER_MAX) -> int:
    """Return an integer from ``least`` to ``most``.

    Raises:
        InvalidOption: it is none.
    """
    digits = text.strip()
    number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
    if not least <= number <= most:
        above = f" to {most}" if most < INTEGER_MAX else " on"
        raise InvalidOption(f"{option}: {text!r}: an integer from {least}{above}")
    return number


def milliseconds(option: str, text: str, *, least: int = 1) -> float:
    """Return seconds, of a number of milliseconds.

    Raises:
        InvalidOption: it is none, or above a day.
    """
    return count(option, text, least=least, most=86_400_000) / 1000


def duration_s(option: str, text: str) -> float:
    """Return seconds, of what Spark takes for a duration: ``15m``, ``90s``, ``500ms``; bare: milliseconds.

    Raises:
        InvalidOption: it is none.
    """
    found = _QUANTITY.fullmatch(text.strip().lower())
    if found is None or found[2] not in _SECONDS:
        raise InvalidOption(f"{option}: {text!r}: a number with a unit: us, ms, s, m, h or d, as in 15m")
    return int(found[1]) * _SECONDS[found[2]]


def size_bytes(option: str, text: str) -> int:
    """Return bytes, of what Spark takes for a size: ``1048576``, ``64m``, ``1g``; powers of 1024.

    Raises:
        InvalidOption: it is none, or nothing.
    """
    found = _QUANTITY.fullmatch(text.strip().lower())
    size = int(found[1]) * _BYTES.get(found[2], 0) if found else 0
    if not 0 < size <= INTEGER_MAX:
        raise InvalidOption(f"{option}: {text!r}: a number of bytes above 0, or with a unit: k, m, g or t")
    return size


def words_of(option: str, text: str, shown: Callable[[str], str] = str) -> tuple[str, ...]:
    """Return the words of a list with commas.

    Args:
        option: for the message.
        text: the words.
        shown: returns a word without its secrets.

    Raises:
        InvalidOption: there is nothing, or one of them twice.
    """
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise InvalidOption(f"{option}: {text!r}: at least one, with commas between several")
    twice = sorted({shown(word) for word in words if words.count(word) > 1})
    if twice:
        raise InvalidOption(f"{option}: {', '.join(twice)} is named twice")
    return words
