"""The rights that NATS says a client does not have.

NATS drops what a client may not publish or subscribe to, and says so on the connection, in order: whoever
waits for an answer would wait until its time is over.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from metadata.api.subjects import as_permission

_VIOLATION: Final = re.compile(
    rb"-ERR 'Permissions Violation for (Publish|Subscription) to \"((?:[^\"\\]|\\.)*)\""
)
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Denial:
    """NATS did not let something through.

    Attributes:
        subject: that was published on, or the pattern that was subscribed to.
        is_publish: it was a message, not a subscription.
    """

    subject: str
    is_publish: bool

    @property
    def text(self) -> str:
        """The right that is missing, in words."""
        right = "publish on" if self.is_publish else "subscribe to"
        return f"NATS does not let this user {right} {as_permission(self.subject)!r}"


def denial_in(line: bytes) -> Denial | None:
    """Return the denial that a line of the server's says, None if it says something else."""
    found = _VIOLATION.match(line)
    if found is None:
        return None
    subject = _ESCAPED.sub(r"\1", found[2].decode(errors="replace"))
    return Denial(subject, is_publish=found[1] == b"Publish")


DenialListener = Callable[[Denial], None]


class Denials:
    """Notifies whoever listens of every denial, in the order of the server's lines."""

    def __init__(self) -> None:
        self._listeners: list[DenialListener] = []

    def on_complaint(self, line: bytes) -> None:
        """Handle a line that begins with ``-ERR``, as the server wrote it."""
        denial = denial_in(line)
        if denial is not None:
            for listener in tuple(self._listeners):
                listener(denial)

    def add(self, listener: DenialListener) -> None:
        """Call ``listener`` for each denial from now on."""
        self._listeners.append(listener)

    @contextmanager
    def notifying(self, listener: DenialListener) -> Iterator[None]:
        """Call ``listener`` for each denial while the block lasts."""
        self.add(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)
