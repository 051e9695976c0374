"""Logs that are gone from a disk that is otherwise as it was: what a node says of them when it starts."""

from collections.abc import Container

from envelope.types import Incarnation, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.nodes import lost_replicas


def lost_by(node: NodeId, held: Container[StreamName], catalog: Catalog) -> tuple[Incarnation, ...]:
    """Return what a node with the logs of ``held`` must name as lost, as far as ``catalog`` knows."""
    lives = frozenset(row.incarnation for row in catalog.streams() if row.name in held)
    return lost_replicas(catalog.streams(), node, lives)
