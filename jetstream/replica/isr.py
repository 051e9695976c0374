"""The in-sync replicas as their leader must see them: the ISR of the catalogue, and what may be it by now."""

from dataclasses import dataclass
from typing import Final

from envelope.types import LeaderEpoch, MonotonicNs, NodeId
from jetstream.replica.leader_events import IsrRefused, ProposeIsr
from metadata.catalog.commands import NodeAtEpoch
from metadata.catalog.events import CommandRefused

_DOUBLED_MAX: Final = 4
"""How often the time to the next repeat doubles."""


@dataclass(slots=True)
class Proposal:
    """An ISR that was proposed, and whose fate is not known."""

    number: int
    expected_version: int
    isr: tuple[NodeAtEpoch, ...]
    sent_at: MonotonicNs
    repeats: int = 0

    def sent_again(self, now: MonotonicNs) -> None:
        """Note that it is repeated."""
        self.sent_at, self.repeats = now, self.repeats + 1

    def as_action(self, leader_epoch: LeaderEpoch) -> ProposeIsr:
        """Return what is to be sent, first or again, in that reign."""
        return ProposeIsr(self.number, leader_epoch, self.expected_version, self.isr)


class InSyncReplicas:
    """The committed ISR and at most one proposal.

    Until its fate is known, a proposal may be in force: another node may already be elected because of it. So
    commits wait for all of the *maximal* ISR, committed and proposed.

    Attributes:
        maximal: all nodes that may be in the ISR.

    Source: KIP-497; Vanlightly's analysis of pending ISR changes.
    """

    def __init__(self, isr: tuple[NodeId, ...], version: int) -> None:
        """Begin with what the catalogue has."""
        self.committed = self.maximal = frozenset(isr)
        self.version = version
        self.proposal: Proposal | None = None
        self.propose_after = MonotonicNs(0)
        """Nothing new is proposed before."""
        self._proposals = 0

    def due_at(self, retry_interval_ns: int) -> MonotonicNs:
        """Return when the proposal that is out is sent again, or from when on there may be one.

        Each repeat is later: those before may wait in the queue of a metadata log that is behind, which would
        never catch up with repeats that come faster than it applies them.
        """
        proposal = self.proposal
        if proposal is None:
            return self.propose_after
        return MonotonicNs(proposal.sent_at + (retry_interval_ns << min(proposal.repeats, _DOUBLED_MAX)))

    def propose(self, isr: tuple[NodeAtEpoch, ...], now: MonotonicNs) -> Proposal:
        """Note that ``isr`` is proposed."""
        assert self.proposal is None, f"L5: proposal {self._proposals} is still out"
        assert isr, "L5: nobody is proposed"
        self._proposals += 1
        self.proposal = Proposal(self._proposals, self.version, isr, now)
        self.maximal = self.committed.union(member.node_id for member in isr)
        return self.proposal

    def commit(self, isr: tuple[NodeId, ...], version: int) -> None:
        """Take in what the catalogue has; what is older than what is known changes nothing.

        A proposal is decided by any newer version: either it made that version, or it comes too late.
        """
        if version <= self.version:
            return
        self.committed = self.maximal = frozenset(isr)
        self.version, self.proposal = version, None

    def refuse(self, refused: IsrRefused, retry_at: MonotonicNs) -> None:
        """Take a refusal in: the end of the proposal that is out, if it is about that; the next comes later.

        If the version has moved, perhaps the proposal was applied when it was sent before: the row that says
        so is on its way.
        """
        if refused.version_moved:
            return
        if self.proposal is None or self.proposal.number != refused.number:
            return
        self.proposal, self.propose_after = None, retry_at
        self.maximal = self.committed


def refusal_of(number: int, refused: CommandRefused) -> IsrRefused | None:
    """Return what a refusal of the catalogue says about a proposal; None if it says nothing.

    In another reign it is refused whether or not it was applied before, when it was sent first; who was
    elected since may be whom it named. The row of that reign is on its way, and deposes the leader.
    """
    reasons = {name for name, _ in refused.detail}
    if "leader_epoch" in reasons:
        return None
    return IsrRefused(number, version_moved="isr_version" in reasons)
