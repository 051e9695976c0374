"""Where a stream's files lie: one directory per life of a stream."""

import re
from typing import Final

from envelope.types import Incarnation, StreamName

INCARNATION_CHARS_MAX: Final = 64
_INCARNATION: Final = re.compile(rf"[a-z0-9][a-z0-9-]{{0,{INCARNATION_CHARS_MAX - 1}}}")
_READABLE_CHARS_MAX: Final = 128
_SEPARATOR: Final = "@"

# One path component on Linux has at most 255 bytes, and names are ASCII.
assert _READABLE_CHARS_MAX + len(_SEPARATOR) + INCARNATION_CHARS_MAX <= 255, "a component must fit"


def is_incarnation(text: str) -> bool:
    """Return whether ``text`` can be an incarnation: lower-case letters, digits and '-', at most 64."""
    return _INCARNATION.fullmatch(text) is not None


def directory_of(name: StreamName, incarnation: Incarnation) -> str:
    """Return the directory of one life of a stream, a single path component.

    The incarnation makes it unique, also where names differ only in case, clash once ``/`` is replaced,
    or are longer than a path component may be; the name before it is for people. ``.`` and ``@`` are in
    no stream name, so no name can imitate another's directory.
    """
    assert is_incarnation(incarnation), f"incarnation {incarnation!r} is not validated"
    return f"{_readable(name)}{_SEPARATOR}{incarnation}"


def may_be_of(directory: str, name: StreamName) -> bool:
    """Return whether a directory can be that of a life of a stream; of very long names others look alike."""
    return incarnation_of(directory) is not None and directory.rpartition(_SEPARATOR)[0] == _readable(name)


def incarnation_of(directory: str) -> Incarnation | None:
    """Return the incarnation that a directory belongs to, or None if it is not a stream's."""
    _, separator, incarnation = directory.rpartition(_SEPARATOR)
    return Incarnation(incarnation) if separator and is_incarnation(incarnation) else None


def _readable(name: StreamName) -> str:
    return name.replace("/", ".")[:_READABLE_CHARS_MAX]
