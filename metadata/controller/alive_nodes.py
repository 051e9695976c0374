"""Nodes that are alive and could lead: their leases, compared with the registered starts."""

from envelope.types import MonotonicNs, NodeEpoch, NodeId
from metadata.catalog.catalog import Catalog
from metadata.catalog.tables import InSyncReplica, Stream
from metadata.controller.leases import Leases


class AliveNodes:
    """The nodes as one controller knows them.

    Attributes:
        leases: of the nodes that were heard in this term.
        stopping: nodes that are about to stop.
    """

    def __init__(self, catalog: Catalog, now: MonotonicNs, lease_ns: int) -> None:
        """Begin the term: nobody was heard."""
        self.leases = Leases(now, lease_ns)
        self.stopping: set[NodeId] = set()
        self._catalog = catalog

    def registered_epoch(self, node: NodeId) -> NodeEpoch:
        """Return the present start of the node; 0 if it never registered."""
        row = self._catalog.node(node)
        return row.node_epoch if row is not None else NodeEpoch(0)

    def is_alive(self, node: NodeId, now: MonotonicNs) -> bool:
        """Return whether the registered start of the node was heard within a lease."""
        return self.leases.is_alive(node, self.registered_epoch(node), now)

    def is_eligible(self, node: NodeId, now: MonotonicNs) -> bool:
        """Return whether the node can take a reign now."""
        return node not in self.stopping and self.is_alive(node, now)

    def has_log(self, row: Stream, member: InSyncReplica) -> bool:
        """Return whether the member's node runs on the directory that is in sync, and has the log there."""
        return row.is_held_by(member, self._catalog.node(member.node_id))

    def is_isr_dead(self, row: Stream, now: MonotonicNs) -> bool:
        """Return whether no node is left that has all that was committed."""
        return all(
            self.leases.is_dead(member.node_id, now) or not self.has_log(row, member) for member in row.isr
        )
