"""Internal streams that have fewer replicas than they should, and the moves that add some.

Each has three replicas, or as many as there are nodes. One that was made when there were fewer nodes is
looked at when a node registers: that is when there may be more. So an operator who has taken a replica of one
away before a node goes is not contradicted at the next tick. Replicas are only added, to one stream at a
time. A move with a dead node in its target holds up no other stream: it may never end. Nothing is moved while
nodes of the cluster's feature level could not read the command.
"""

from typing import Final

from envelope.internal_streams import INTERNAL_STREAMS
from envelope.types import MonotonicNs, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ReassignReplicas
from metadata.catalog.tables import Stream
from metadata.controller.alive_nodes import AliveNodes
from metadata.features import Feature
from metadata.limits import INTERNAL_REPLICAS_MAX
from metadata.placement import PlacementCandidate, loads, resized
from metadata.rebalancing import planned

_AT_ONCE: Final = MonotonicNs(0)


class InternalGrowth:
    """See the module; one for every term."""

    def __init__(self, catalog: Catalog, alive_nodes: AliveNodes, retry_interval_ns: int) -> None:
        """Begin with all internal streams: what an earlier term has left undone is done.

        ``retry_interval_ns``: how long to wait for the outcome of a move before one is proposed again.
        """
        self._catalog = catalog
        self._alive_nodes = alive_nodes
        self._retry_interval_ns = retry_interval_ns
        self._not_before = _AT_ONCE
        self._unsettled = set(INTERNAL_STREAMS)
        """Those that may have too few replicas."""

    def look_at_all(self) -> None:
        """Record that there may be more nodes."""
        self._unsettled.update(INTERNAL_STREAMS)

    def look_at(self, name: StreamName) -> None:
        """Record that a stream was created, perhaps when there were fewer nodes."""
        if name in INTERNAL_STREAMS:
            self._unsettled.add(name)

    def next_move(self, now: MonotonicNs) -> ReassignReplicas | None:
        """Return the command that adds replicas to one stream, None if there is nothing to do now."""
        level = self._catalog.cluster.feature_level
        if not self._unsettled or now < self._not_before or level < Feature.INTERNAL_GROWTH.level:
            return None
        rows = [row for row in map(self._catalog.stream, INTERNAL_STREAMS) if row is not None]
        number = min(INTERNAL_REPLICAS_MAX, len(self._catalog.nodes()))
        lacking = [row for row in rows if row.name in self._unsettled and len(planned(row)) < number]
        self._unsettled = {row.name for row in lacking}
        if any(self._is_under_way(row, now) for row in rows):
            return None
        command = next(filter(None, (self._move(row, number, now) for row in lacking)), None)
        if command is not None:
            self._not_before = MonotonicNs(now + self._retry_interval_ns)
        return command

    def _is_under_way(self, row: Stream, now: MonotonicNs) -> bool:
        leases = self._alive_nodes.leases
        return row.target is not None and not any(leases.is_dead(node, now) for node in row.target)

    def _move(self, row: Stream, number: int, now: MonotonicNs) -> ReassignReplicas | None:
        """Return the command that adds replicas up to that number, or to what living nodes can hold now."""
        if row.target is not None or row.leader is None:
            return None
        eligible = [
            node for node in self._catalog.nodes() if self._alive_nodes.is_eligible(node.node_id, now)
        ]
        room = {node.node_id for node in eligible} - set(row.holders)
        if room:  # else nothing below is worth looking at, tick after tick, while a node is dead
            room -= self._owing(row)
        if not room:
            return None
        held, led = loads(self._catalog.streams())
        candidates = [
            PlacementCandidate(node.node_id, node.rack, held[node.node_id], led[node.node_id])
            for node in eligible
        ]
        count = min(number, len(row.replicas) + len(room))
        taken = {node.node_id for node in eligible} - room
        target = resized(candidates, row, count, taken)
        return ReassignReplicas(row.name, row.incarnation, target, expected_isr_version=row.isr_version)

    def _owing(self, row: Stream) -> set[NodeId]:
        """Return the nodes that have yet to remove their former replica of a stream."""
        removals = (owed for owed in self._catalog.removals() if owed.incarnation == row.incarnation)
        return {node for removal in removals for node in removal.pending}
