"""How long a voter waits for a leader before it asks for an election.

Every voter waits another time, so that one is first and wins before the others ask. The times come from a
checksum of the voter, its term and how many times in a row it waits: they look like chance, and are the same
in every replay.

Source: Ongaro and Ousterhout, section 5.2.
"""

from typing import Final
from zlib import crc32

from envelope.types import MonotonicNs, NodeId, Term
from metadata.raft.settings import RaftSettings

_CRC_VALUES: Final = 2**32


class ElectionTimer:
    """See the module."""

    def __init__(self, node_id: NodeId, settings: RaftSettings, now: MonotonicNs) -> None:
        """Begin with a wait that is over."""
        self.at = now
        """When to ask."""
        self._node_id = node_id
        self._settings = settings
        self._attempt = 0

    def restart(self, term: Term, now: MonotonicNs) -> None:
        """Wait once to twice the election timeout."""
        self.at = self._after(now, self._settings.election_timeout_ns * (1 + self._fraction(term)))

    def leader_heard(self, term: Term, now: MonotonicNs) -> None:
        """Wait anew for a leader that is there; what went before is forgotten."""
        self._attempt = 0
        self.restart(term, now)

    def timed_out(self, term: Term, now: MonotonicNs) -> None:
        """Wait for the outcome of an election, for another time than before."""
        self._attempt += 1
        self.restart(term, now)

    def nobody_leads(self, term: Term, now: MonotonicNs) -> None:
        """Wait for a part of a heartbeat interval: others may know it, too, and ask at once."""
        self.at = self._after(now, self._settings.heartbeat_interval_ns * self._fraction(term))

    def refused(self, now: MonotonicNs) -> None:
        """Wait for a heartbeat interval at most: the voter that refused may soon grant."""
        self.at = min(self.at, self._after(now, self._settings.heartbeat_interval_ns))

    def _fraction(self, term: Term) -> float:
        """Return a number in [0, 1)."""
        return crc32(f"{self._node_id}/{term}/{self._attempt}".encode()) / _CRC_VALUES

    @staticmethod
    def _after(now: MonotonicNs, duration_ns: float) -> MonotonicNs:
        return MonotonicNs(now + int(duration_ns))
