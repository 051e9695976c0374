"""Admission at one port: so many connections, so many of them of strangers, and never the last descriptor.

A stranger is a peer that has not sent its greeting yet. When one too many comes, the stranger that has been
silent for longest is cut off: peers that greet are served, however many stay silent.
"""

import logging
import time
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from metadata.node.admission.descriptors import DescriptorShare, budget, may_keep

_log = logging.getLogger(__name__)

STRANGERS_MAX: Final = 512
"""Of one port: each may have some ten kilobytes in memory before it is known."""

_TELL_SECONDS: Final = 60.0


class AdmissionVerdict(Enum):
    """The decision about a new connection."""

    LET_IN = auto()
    DISPLACE = auto()
    """Let in, and the stranger that came first is cut off."""
    REFUSE = auto()


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many there may be at one port."""

    connections: int
    strangers: int = STRANGERS_MAX

    def verdict(self, connected: int, strangers: int, *, has_room: bool) -> AdmissionVerdict:
        """Decide about one more.

        Args:
            connected: how many are there, strangers and those that are being cut off included.
            strangers: how many of them may be cut off for others.
            has_room: whether a descriptor is left for one more.
        """
        is_full = connected >= self.connections or not has_room
        if not is_full and strangers < self.strangers:
            return AdmissionVerdict.LET_IN
        return AdmissionVerdict.DISPLACE if strangers else AdmissionVerdict.REFUSE


@dataclass(slots=True)
class Door:
    """Decides at one port, and counts.

    Attributes:
        port: for the log.
        share: whose descriptors the connections are.
        connections: how many there may be.
        refused: connections that were closed at once.
        displaced: strangers that were cut off for others.
    """

    port: str
    share: DescriptorShare
    connections: int
    refused: int = 0
    displaced: int = 0
    _logged_at: float | None = None

    def verdict(self, connected: int, strangers: int, newest: int) -> AdmissionVerdict:
        """Decide about one more, whose descriptor is ``newest``."""
        bounds = Bounds(self.connections, min(STRANGERS_MAX, budget().strangers))
        verdict = bounds.verdict(connected, strangers, has_room=may_keep(self.share, newest))
        if verdict is not AdmissionVerdict.LET_IN:
            self.refused += verdict is AdmissionVerdict.REFUSE
            self.displaced += verdict is AdmissionVerdict.DISPLACE
            self._log_refusals(connected, strangers)
        return verdict

    def _log_refusals(self, connected: int, strangers: int) -> None:
        now = time.monotonic()
        if self._logged_at is None or now - self._logged_at >= _TELL_SECONDS:
            self._logged_at = now
            text = (
                "too many connections port=%s connected=%d strangers=%d refused=%d displaced=%d runbook=RB-12"
            )
            _log.warning(text, self.port, connected, strangers, self.refused, self.displaced)
