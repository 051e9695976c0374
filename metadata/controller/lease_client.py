"""A node's side of its lease: how far an answer of the metadata leader prolongs it."""

from typing import Final

from envelope.types import MonotonicNs, NodeEpoch, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.lease import Lease
from metadata.raft.messages.node_messages import LeaseGranted, LeaseRefused

CLOCK_MARGIN_DIVISOR: Final = 16
"""A sixteenth of the granted time is not used: the clock that counts it here may run slower than the one
that counts it on the metadata leader. Clocks that are steered run apart by a two-thousandth."""


class LeaseClient:
    """The lease during one start of a node.

    Invariant:
        J4: the lease ends before the metadata leader that granted it, or its successor, can count the node as
            dead: it began when it was asked for, and a margin is left for the clocks.
    """

    def __init__(self, lease: Lease) -> None:
        """Hold ``lease``, and be the only one that prolongs it."""
        self._lease = lease
        self._node_epoch: NodeEpoch | None = None

    @property
    def node_epoch(self) -> NodeEpoch | None:
        """The registered start; None before it is."""
        return self._node_epoch

    def begin(self, node_epoch: NodeEpoch) -> None:
        """Record that the node has registered."""
        assert self._node_epoch is None, f"started as {self._node_epoch}, and again as {node_epoch}"
        self._node_epoch = node_epoch

    def granted(self, grant: LeaseGranted, now: MonotonicNs) -> bool:
        """Prolong the lease; return whether it had lapsed and is valid again."""
        if grant.node_epoch != self._node_epoch or grant.asked_at > now:
            return False
        had_lapsed = not self._lease.is_valid(now)
        usable_ns = grant.lease_ns - grant.lease_ns // CLOCK_MARGIN_DIVISOR
        assert usable_ns <= grant.lease_ns, f"J4: {usable_ns} ns of {grant.lease_ns}"
        self._lease.until = max(self._lease.until, MonotonicNs(grant.asked_at + usable_ns))
        return had_lapsed and self._lease.is_valid(now)

    def is_over(self, refusal: LeaseRefused) -> bool:
        """Return whether a newer start of the node has registered, so that this process is to stop."""
        return self._node_epoch is not None and refusal.node_epoch > self._node_epoch


def streams_to_hand_over(
    catalog: Catalog, node: NodeId, unheard: frozenset[NodeId]
) -> tuple[StreamName, ...]:
    """Return the streams that the node leads and that another member of their ISR could lead.

    Nobody in ``unheard`` could: they are not heard here.
    """
    cannot = unheard | {node}
    return tuple(
        stream.name
        for stream in catalog.streams()
        if stream.leader == node and any(member not in cannot for member in stream.isr_nodes)
    )
