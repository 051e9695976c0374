"""The meaning of a NATS server's ``-ERR`` for the connection's subscriptions; pure.

Nothing is decided here about the connection itself: a server ends those that it does not want to keep.
"""

import re
from dataclasses import dataclass
from typing import Final

_DENIED: Final = re.compile(r"permissions violation for subscription to ", re.IGNORECASE)
_ENDED: Final = re.compile(r'\(sid "(\d+)"\)$')
_KEPT_OUT: Final = re.compile("authorization|authentication", re.IGNORECASE)
_TOO_MANY_TOKENS: Final = ", too many tokens"
_REFUSED: Final = ("maximum subscriptions exceeded", "invalid subject", "invalid subscription")


def is_kept_out(error: Exception) -> bool:
    """Return whether a server does not let this client in: to wait would be of no use."""
    return _KEPT_OUT.search(str(error)) is not None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A server refuses a subscription, or has ended one.

    Attributes:
        reason: the server's words.
        is_denial: whether a right is missing.
        sid: which one it has ended; None if it refuses the one that it was asked for last.
    """

    reason: str
    is_denial: bool
    sid: int | None = None


def refusal_in(error: str) -> Refusal | None:
    """Return the refusal of a subscription, None if the error is about something else."""
    if _DENIED.match(error):
        ended = _ENDED.search(error)
        is_denial = not error.lower().endswith(_TOO_MANY_TOKENS)
        return Refusal(error, is_denial, None if ended is None else int(ended[1]))
    return Refusal(error, is_denial=False) if error.lower() in _REFUSED else None
