"""Which node answers a request best; any node takes it.

Who leads a stream knows its live state and is where its changes take effect; who leads the metadata log knows
which nodes are alive and can hold a new stream. Everything else is in the catalogue, which every node has.
"""

from envelope.types import NodeId, StreamName
from metadata.api.requests import (
    ClusterInfoRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    DrainNodeRequest,
    RebalanceRequest,
    Request,
    StreamInfoRequest,
    TruncateStreamRequest,
    UpdateStreamRequest,
)
from metadata.catalog.catalog import Catalog


def home_of(request: Request, catalog: Catalog, metadata_leader: NodeId | None) -> NodeId | None:
    """Return the node that is to answer ``request``; None if it makes no difference, or nobody can say."""
    match request:
        case CreateStreamRequest(name=name):
            existing = catalog.stream(StreamName(name))
            return metadata_leader if existing is None else existing.leader
        case (
            UpdateStreamRequest(name=name)
            | DeleteStreamRequest(name=name)
            | TruncateStreamRequest(name=name)
            | StreamInfoRequest(name=name)
        ):
            row = catalog.stream(StreamName(name))
            return None if row is None else row.leader
        case ClusterInfoRequest() | DrainNodeRequest() | RebalanceRequest():
            return metadata_leader
        case _:
            return None
