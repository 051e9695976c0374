"""NATS subjects and patterns: grammar, matching, overlap and inclusion.

Source: NATS documentation, "Subject-Based Messaging"; ``*`` is one token, ``>`` one or more at the tail.
"""

import re
from functools import lru_cache
from typing import Final

from envelope.errors import InvalidName, InvalidSubject
from envelope.limits import STREAM_NAME_CHARS_MAX, SUBJECT_BYTES_MAX
from envelope.types import StreamName

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_\-]*(/[A-Za-z0-9_][A-Za-z0-9_\-]*)*")
_FORBIDDEN: Final = re.compile(r"[\s\x00-\x1f\x7f]")


def validated_stream_name(name: str) -> StreamName:
    """Return ``name`` as a stream name.

    Letters, digits, ``_`` and ``-``, optionally in ``/``-separated namespaces; no dots, wildcards or
    spaces, so that a name is a NATS token and a directory alike.

    Raises:
        InvalidName: the name is empty, too long or outside that grammar.
    """
    if len(name) > STREAM_NAME_CHARS_MAX:
        raise InvalidName(f"stream name has {len(name)} characters, the limit is {STREAM_NAME_CHARS_MAX}")
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"invalid stream name {name!r}: use letters, digits, '_', '-' and '/' between namespaces"
        )
    return StreamName(name)


def validated_names(pattern: str) -> str:
    """Return ``pattern`` if it is a stream name of which any part may be ``*``.

    Raises:
        InvalidName: it is not.
    """
    _ = validated_stream_name("/".join("_" if part == "*" else part for part in pattern.split("/")))
    return pattern


def name_matches(pattern: str, name: str) -> bool:
    """Return whether a name is one of a `validated_names`: a ``*`` is any one part."""
    return matches(pattern.replace("/", "."), name.replace("/", "."))


def validated_pattern(pattern: str) -> str:
    """Return ``pattern`` if NATS would accept it in a SUB.

    Raises:
        InvalidSubject: empty tokens, white space, control characters, or ``>`` before the end.
    """
    if not pattern or len(pattern.encode("utf-8", "surrogatepass")) > SUBJECT_BYTES_MAX:
        raise InvalidSubject(f"subject must have 1 to {SUBJECT_BYTES_MAX} bytes")
    if _FORBIDDEN.search(pattern) or not _is_utf8(pattern):
        raise InvalidSubject(f"subject {pattern!r} has white space or control characters")
    tokens = pattern.split(".")
    if "" in tokens:
        raise InvalidSubject(f"subject {pattern!r} has an empty token")
    if ">" in tokens[:-1]:
        raise InvalidSubject(f"subject {pattern!r} has '>' before its last token")
    return pattern


@lru_cache(maxsize=4096)
def validated_subject(subject: str) -> str:
    """Return ``subject`` if a message can be published on it: a pattern without wildcards.

    Raises:
        InvalidSubject: as `validated_pattern`, or a wildcard token.
    """
    validated_pattern(subject)
    if not is_literal(subject):
        raise InvalidSubject(f"subject {subject!r} has a wildcard; messages need a literal subject")
    return subject


def is_literal(pattern: str) -> bool:
    """Return whether no token of ``pattern`` is a wildcard."""
    return not any(token in ("*", ">") for token in pattern.split("."))


@lru_cache(maxsize=4096)
def matches(pattern: str, subject: str) -> bool:
    """Return whether a message on ``subject`` reaches a subscription to ``pattern``."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, part in enumerate(wanted):
        if part == ">":
            return len(given) > index
        if index >= len(given) or part not in ("*", given[index]):
            return False
    return len(wanted) == len(given)


def overlap(first: str, second: str) -> bool:
    """Return whether some subject matches both patterns."""
    a, b = first.split("."), second.split(".")
    for left, right in zip(a, b, strict=False):
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return len(a) == len(b)


def covers(pattern: str, inner: str) -> bool:
    """Return whether every subject that matches ``inner`` matches ``pattern``."""
    outside, inside = pattern.split("."), inner.split(".")
    for index, part in enumerate(outside):
        if part == ">":
            return len(inside) > index
        if index >= len(inside) or inside[index] == ">" or part not in ("*", inside[index]):
            return False
    return len(outside) == len(inside)


def first_level(pattern: str) -> str | None:
    """Return the pattern of the first of the levels that a ``>`` at the end is for; None: it ends in none."""
    return f"{pattern[:-1]}*" if pattern == ">" or pattern.endswith(".>") else None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
