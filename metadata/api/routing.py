"""The node that answers a request best; any node accepts it.

The leader of a stream knows its live state and is where its changes take effect; the metadata leader knows
which nodes are alive, and so which can hold or lead a stream. Everything else is in the catalogue, which
every node has.
"""

from typing import Final

from envelope.internal_streams import CURSORS, GROUP_SHARD_STREAMS, group_shard
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
    GroupRequest,
    LimitNamespaceRequest,
    ListCursorsRequest,
    ListGroupsRequest,
    ListNamespacesRequest,
    ListStreamsRequest,
    NamespaceInfoRequest,
    ReassignStreamRequest,
    RebalanceRequest,
    RemoveNodeRequest,
    Request,
    ResetStreamTimeRequest,
    RestoreStreamRequest,
    SetTxidRequest,
    StreamInfoRequest,
    StreamPublishersRequest,
    TruncateStreamRequest,
    UpdateClusterRequest,
    UpdateStreamRequest,
)
from metadata.catalog.catalog import Catalog

_DECIDED_WITH_THE_LIVING: Final = frozenset(("replicas", "read_replicas", "unclean_election"))
"""Settings that depend on which nodes are alive, or are changed when the stream's leader is not."""


_NODE_WORD: Final = "node"


def node_subject(api_prefix: str, node: NodeId, suffix: str) -> str:
    """Return the subject on which ``node`` alone is asked, and answers itself.

    ``suffix``: of the subject on which any node is, such as ``stream.info``; or ``>``: whatever it is asked.
    """
    return f"{api_prefix}.{_NODE_WORD}.{node}.{suffix}"


def home_of(request: Request, catalog: Catalog, metadata_leader: NodeId | None) -> NodeId | None:
    """Return the node that is to answer ``request``; None if it makes no difference, or is not known."""
    if isinstance(request, CursorQuestion | GroupRequest):
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
            | SetTxidRequest(name=name)
            | ResetStreamTimeRequest(name=name)
            | StreamInfoRequest(name=name)
            | StreamPublishersRequest(name=name)
        ):
            row = catalog.stream(StreamName(name))
            # What was created a moment ago may not be in this node's catalogue yet.
            return metadata_leader if row is None else row.leader
        case (
            ReassignStreamRequest()
            | ListStreamsRequest(internal=True)  # a backup's: none may be missing
            | ClusterInfoRequest()
            | UpdateClusterRequest()
            | DrainNodeRequest()
            | RemoveNodeRequest()
            | RebalanceRequest()
            | RestoreStreamRequest()
            | ElectLeaderRequest()
            | LimitNamespaceRequest()
            | NamespaceInfoRequest()
            | ListNamespacesRequest()
        ):
            return metadata_leader
        case _:
            return None


def _home_of_stored(
    request: CursorQuestion | GroupRequest, catalog: Catalog, metadata_leader: NodeId | None
) -> NodeId | None:
    """Return the node that answers what internal streams store: the leader of the stream that has it."""
    match request:
        case GetCursorRequest() | ListCursorsRequest():
            return _leader_of(CURSORS, catalog, metadata_leader)
        case ListGroupsRequest(shard=shard):
            if shard is not None:
                return _leader_of(StreamName(shard), catalog, metadata_leader)
            # Any node asks all leaders of shards, once it knows every one that there can be.
            knows_all = all(map(catalog.stream, GROUP_SHARD_STREAMS))
            return None if knows_all else metadata_leader
        case FindCoordinatorRequest(group=group):
            return metadata_leader if catalog.stream(group_shard(group)) is None else None
        case _:
            return _leader_of(group_shard(request.group), catalog, metadata_leader)


def _leader_of(internal: StreamName, catalog: Catalog, metadata_leader: NodeId | None) -> NodeId | None:
    """Return the leader of an internal stream; without one, the node that can make it, or refuse."""
    row = catalog.stream(internal)
    return metadata_leader if row is None else row.leader
