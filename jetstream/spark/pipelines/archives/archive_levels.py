"""How an archive's rows are put into directories; pure."""

import re
from collections.abc import Sequence
from typing import Final

from envelope.errors import InvalidConfig

LEVELS_DEFAULT: Final = ("date",)
_SUBJECT: Final = re.compile(r"subject:([1-9][0-9]?)")
_DAY_US: Final = 86_400_000_000
_HOUR_US: Final = 3_600_000_000


def checked_levels(words: Sequence[str]) -> tuple[str, ...]:
    """Return the levels of directories, root first: ``date``, then ``hour`` and ``subject:2`` at will.

    Raises:
        InvalidConfig: one that there is not, one of them twice, or another one first.
    """
    for word in words:
        if word not in ("date", "hour") and not _SUBJECT.fullmatch(word):
            raise InvalidConfig(
                f"no level of directories: {word!r}: there are date, hour, and subject:2 for a token"
            )
    if not words or words[0] != "date" or len(set(words)) != len(words):
        raise InvalidConfig(f"{','.join(words)!r}: date comes first, and nothing twice: date,hour,subject:2")
    return tuple(words)


def column_of(level: str) -> str:
    """Return the name of a level's column: ``subject:2`` is ``subject_2``."""
    return level.replace(":", "_")


def expression_of(level: str) -> str:
    """Return a level's column in SQL. Days and hours are UTC's, whatever the session's time zone is."""
    token = _SUBJECT.fullmatch(level)
    if token:
        return f"split_part(subject, '.', {token[1]}) AS {column_of(level)}"
    if level == "hour":
        return f"lpad(string(unix_micros(timestamp) div {_HOUR_US} % 24), 2, '0') AS hour"
    return f"string(date_from_unix_date(int(unix_micros(timestamp) div {_DAY_US}))) AS date"
