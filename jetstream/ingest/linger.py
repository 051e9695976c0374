"""Messages gather while replicas work: how many make a group, and how many groups are under way at once.

A group has its price on every node, whatever its size; messages that wait a little longer share it
(ADR 0002). There is no timer in it: whatever changes the answer asks again.
"""

from collections import deque
from typing import Final

from envelope.limits import MIB
from envelope.types import Offset

NEXT_GROUP_SHARE: Final = 3 / 4
"""Behind a group that is not committed one is begun when it has so many messages for each one in that."""
UNCOMMITTED_GROUPS_MAX: Final = 3
"""While the publishers of so many groups wait for replicas, no further one is begun."""
FULL_GROUP_MESSAGES: Final = 2_048
FULL_GROUP_BYTES: Final = MIB
"""So many messages, or bytes, gather no further: their share of a group's price is small."""


class Linger:
    """The groups of one stream that are not committed, oldest first.

    Invariant:
        G1: groups are begun in the order of their offsets, none of them empty.

    Attributes:
        hurries: whether every group begins as soon as it can: few messages come any more.
    """

    def __init__(self) -> None:
        self._begun: deque[tuple[Offset, Offset, int]] = deque()  # base, end and messages of each
        self.hurries = False

    def begin(self, base: Offset, end: Offset, messages: int) -> None:
        """Note a group of so many messages, whose records are ``[base, end)``."""
        last = self._begun[-1][1] if self._begun else base
        assert last <= base < end, f"G1: [{base}, {end}) behind {last}"
        self._begun.append((base, end, messages))

    def commit(self, high_watermark: Offset) -> None:
        """Forget the groups that are wholly below ``high_watermark``."""
        while self._begun and self._begun[0][1] <= high_watermark:
            self._begun.popleft()

    def take_back(self, base: Offset) -> None:
        """Forget the groups from ``base`` on: they were not stored."""
        while self._begun and self._begun[-1][0] >= base:
            self._begun.pop()

    def waits(self, waiting: int) -> bool:
        """Return whether ``waiting`` messages are too few beside those that the replicas are at work on."""
        if not self._begun or self.hurries:
            return False
        return len(self._begun) >= UNCOMMITTED_GROUPS_MAX or self.is_small(waiting)

    def is_small(self, waiting: int) -> bool:
        """Return whether ``waiting`` messages are less than their share of the newest group's."""
        return waiting < NEXT_GROUP_SHARE * self._begun[-1][2]
