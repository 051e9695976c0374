"""Leases of nodes, as far as this metadata leader has heard them since its term began."""

from envelope.types import MonotonicNs, NodeEpoch, NodeId


class Leases:
    """Leases by node.

    A node may be neither alive nor dead: not heard in this term, but perhaps with a lease of the term before.

    Invariant:
        J2: nobody counts as dead before a full lease has passed since it was last heard and since the term
            began.
    """

    def __init__(self, now: MonotonicNs, lease_ns: int) -> None:
        """Begin the term: nobody was heard."""
        self._lease_ns = lease_ns
        self._unheard_until = MonotonicNs(now + lease_ns)
        self._heard: dict[NodeId, tuple[NodeEpoch, MonotonicNs]] = {}

    def renew(self, node: NodeId, node_epoch: NodeEpoch, now: MonotonicNs) -> None:
        """Record that this start of the node was heard."""
        self._heard[node] = (node_epoch, now)

    def is_alive(self, node: NodeId, node_epoch: NodeEpoch, now: MonotonicNs) -> bool:
        """Return whether this start of the node was heard within a lease."""
        heard = self._heard.get(node)
        return heard is not None and heard[0] == node_epoch and now < heard[1] + self._lease_ns

    def is_dead(self, node: NodeId, now: MonotonicNs) -> bool:
        """Return whether no lease that the node was ever given can be valid."""
        heard = self._heard.get(node)
        last = self._unheard_until if heard is None else MonotonicNs(heard[1] + self._lease_ns)
        return now >= max(last, self._unheard_until)
