"""A member's line to its coordinator: whether there is one, and when what is unanswered is asked again."""

from collections.abc import Iterator
from typing import Final

from consumer_groups.coordinator.events import ConnectionId, SetTimer
from consumer_groups.member.events import LocateCoordinator
from envelope.types import MonotonicNs

ASK_AGAIN_NS_MIN: Final = 100_000_000
ASK_AGAIN_NS_MAX: Final = 3_200_000_000
"""Unanswered requests are sent again after a while that doubles from one to the other."""


class PendingRequests:
    """Where requests are sent."""

    def __init__(self) -> None:
        self.connection: ConnectionId | None = None
        """None: nowhere; a coordinator is looked for, once anything is to be sent."""
        self._is_looking = False
        self._attempts = 0
        self._timer_is_set = False

    def locate(self) -> Iterator[LocateCoordinator]:
        """Look for a coordinator, unless there is one or it is looked for already."""
        if self.connection is None and not self._is_looking:
            self._is_looking = True
            yield LocateCoordinator()

    def found(self, connection: ConnectionId) -> None:
        """Take in where the coordinator is."""
        self.connection, self._is_looking = connection, False
        self.begin()

    def lost(self, connection: ConnectionId) -> Iterator[LocateCoordinator]:
        """Take in that nobody coordinates at the other end of this connection any more."""
        if connection == self.connection:
            self.connection = None
            yield from self.locate()

    def begin(self) -> None:
        """Take in that something new is asked, for the first time."""
        self._attempts = 0

    def ticked(self) -> None:
        """Take in that the time has come, and all is asked again."""
        self._timer_is_set = False
        self._attempts += 1

    def timer(self, now: MonotonicNs, *, waits: bool) -> Iterator[SetTimer]:
        """Yield when to ask again, if anything ``waits`` for an answer and nobody is being looked for."""
        if self._timer_is_set or self.connection is None or not waits:
            return
        self._timer_is_set = True
        pause = min(ASK_AGAIN_NS_MIN << min(self._attempts, 8), ASK_AGAIN_NS_MAX)
        yield SetTimer(MonotonicNs(now + pause))
