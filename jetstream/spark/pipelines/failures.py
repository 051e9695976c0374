"""The cause of a query's failure, out of the text in which Spark hands an error on; pure.

An error that is raised in one of Spark's Python processes reaches us as text: messages of the JVM around the
traceback of that process, whose last line has the class and the description. An error of ours is restored
with its code, so that the command ends with the right exit code.
"""

import re
from typing import Final

from envelope.errors import InternalError, JetstreamError, RequestError, registry

_OWN_ERROR: Final = re.compile(r"\benvelope\.\w+\.(?P<name>[A-Z]\w+): (?P<text>.+)$", re.MULTILINE)
_CONDITION: Final = re.compile(r"\[[A-Z0-9_.]+\] .+")
"""How Spark begins what is wrong: ``[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column …``."""

_TEXT_CHARS_MAX: Final = 1000


class QueryFailed(InternalError):
    """A query failed with an error that is not ours; the description is Spark's."""


def failure_of(text: str, *, is_request: bool = False) -> JetstreamError:
    """Return the error that ended a query, from all of Spark's text about it.

    Args:
        text: with lines of the JVM and of Python.
        is_request: the request to Spark is wrong.
    """
    classes = {cls.__name__: cls for cls in registry().values()}
    for found in reversed(list(_OWN_ERROR.finditer(text))):
        if found["name"] in classes:
            return classes[found["name"]](found["text"])
    return RequestError(reason_of(text)) if is_request else QueryFailed(reason_of(text))


def reason_of(text: str) -> str:
    """Return the line with the reason: the last one with a condition of Spark, else the first."""
    conditions: list[str] = _CONDITION.findall(text)
    lines = conditions[-1:] or [line for line in text.splitlines() if line.strip()] or ["unknown"]
    return lines[0].strip()[:_TEXT_CHARS_MAX]
