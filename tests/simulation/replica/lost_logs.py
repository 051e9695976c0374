"""Logs that are gone from a disk that is otherwise as it was: what a node says of them when it starts."""

from collections.abc import Container

from envelope.types import Incarnation, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import RegisterNode
from metadata.catalog.nodes import lost_replicas, restored_replicas
from metadata.catalog.tables import InSyncReplica
from tests.support.catalogs import register


def registration(
    node: NodeId,
    directory: str,
    held: Container[StreamName],
    catalog: Catalog,
    *,
    unsynced_kept: bool = False,
) -> RegisterNode:
    """Return the start of a node with the logs of ``held``, as far as ``catalog`` knows."""
    lives = frozenset(row.incarnation for row in catalog.streams() if row.name in held)
    lost = lost_replicas(catalog.streams(), node, lives)
    restored: tuple[Incarnation, ...] = restored_replicas(
        catalog.streams(), InSyncReplica(node, directory), lives
    )
    return register(node, directory, unsynced_kept=unsynced_kept, lost=lost, restored=restored)
