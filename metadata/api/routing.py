"""Which node answers a request best; any node takes it.

Who leads a stream knows its live state and is where its changes take effect; who leads the metadata log knows
which nodes are alive, and so which can hold or lead a stream. Everything else is in the catalogue, which
every node has.
"""

from typing import Final, assert_never

from envelope.internal_streams import CURSORS, group_shard
from envelope.types import NodeId, StreamName
from metadata.api.requests import (
    ClusterInfoRequest,
    CreateStreamRequest,
    CursorQuestion,
    DeleteStreamRequest,
    DrainNodeRequest,
    ElectLeaderRequest,
    FindCoordinatorRequest,
    GetCursorRequest,
    ListCursorsRequest,
    ReassignStreamRequest,
    RebalanceRequest,
    Request,
    RestoreStreamRequest,
    StreamInfoRequest,
    TruncateStreamRequest,
    UpdateStreamRequest,
)
from metadata.catalog.catalog import Catalog

_DECIDED_WITH_THE_LIVING: Final = frozenset(("read_replicas", "unclean_election"))
"""Settings that depend on who is alive, or are changed when the stream's leader is not."""


def home_of(request: Request, catalog: Catalog, metadata_leader: NodeId | None) -> NodeId | None:
    """Return the node that is to answer ``request``; None if it makes no difference, or nobody can say."""
    if isinstance(request, CursorQuestion | FindCoordinatorRequest):
        return _home_of_stored(request, catalog, metadata_leader)
    match request:
        case CreateStreamRequest(name=name):
            existing = catalog.stream(StreamName(name))
            return metadata_leader if existing is None else existing.leader
        case UpdateStreamRequest() if not request.model_fields_set.isdisjoint(_DECIDED_WITH_THE_LIVING):
            return metadata_leader
        case (
            UpdateStreamRequest(name=name)
            | DeleteStreamRequest(name=name)
            | TruncateStreamRequest(name=name)
            | StreamInfoRequest(name=name)
        ):
            row = catalog.stream(StreamName(name))
            # What was created a moment ago may not be in this node's catalogue yet.
            return metadata_leader if row is None else row.leader
        case (
            ReassignStreamRequest()
            | ClusterInfoRequest()
            | DrainNodeRequest()
            | RebalanceRequest()
            | RestoreStreamRequest()
            | ElectLeaderRequest()
        ):
            return metadata_leader
        case _:
            return None


def _home_of_stored(
    request: CursorQuestion | FindCoordinatorRequest, catalog: Catalog, metadata_leader: NodeId | None
) -> NodeId | None:
    """Return who answers what is about internal streams; who leads the metadata log makes them."""
    match request:
        case GetCursorRequest() | ListCursorsRequest():
            cursors = catalog.stream(CURSORS)
            return metadata_leader if cursors is None else cursors.leader
        case FindCoordinatorRequest(group=group):
            return metadata_leader if catalog.stream(group_shard(group)) is None else None
        case _:
            assert_never(request)
