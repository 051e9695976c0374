"""The requests about the cluster as a whole: what it is, and the numbers that an operator chooses for it."""

import logging
from collections.abc import Awaitable, Callable

from envelope.types import NodeId
from jetstream.node.api.internal_streams import count_internal
from jetstream.protocol.requests import PROTOCOL_VERSION
from metadata.api.requests import UpdateClusterRequest
from metadata.api.responses import ClusterInfo, NodeInfo, NodeRole
from metadata.catalog.commands import Command, SetDefaultReplicas, SetVoters
from metadata.catalog.events import Event
from metadata.limits import REPLICAS_DEFAULT
from metadata.members import node_of
from metadata.node.catalogue.group import MetadataQuorum

_log = logging.getLogger(__name__)


def voting_nodes(metadata: MetadataQuorum) -> frozenset[NodeId]:
    """Return the nodes with a vote in the metadata log; the leader knows, others may be behind."""
    quorum = metadata.member.membership()
    return frozenset(map(node_of, metadata.voters if quorum is None else quorum.configuration.voters))


def cluster_info(name: str, metadata: MetadataQuorum, alive: frozenset[NodeId] | None) -> ClusterInfo:
    """Return the nodes of the cluster, and which are alive if this node knows.

    Args:
        name: of the cluster.
        metadata: this node's.
        alive: the nodes that hold a lease; None if this node does not know.
    """
    catalog, quorum, voters = metadata.catalog, metadata.member.membership(), voting_nodes(metadata)
    return ClusterInfo(
        name=name,
        cluster_id=catalog.cluster.cluster_id,
        nodes=[
            NodeInfo(
                id=node.node_id,
                node_epoch=node.node_epoch,
                host=node.host,
                port=node.port,
                http_port=node.http_port,
                version=node.version,
                peer_host=node.peer_host,
                peer_port=node.peer_port,
                rack=node.rack,
                role=NodeRole.VOTER if node.node_id in voters else NodeRole.DATA,
                alive=None if alive is None else node.node_id in alive,
            )
            for node in catalog.nodes()
        ],
        metadata_leader=metadata.leader,
        voters=sorted(voters),
        learners=None if quorum is None else sorted(map(node_of, quorum.configuration.learners)),
        voters_wanted=catalog.cluster.voters_wanted,
        streams=catalog.count_streams() - count_internal(catalog),
        protocol_versions=[PROTOCOL_VERSION],
        default_replicas=catalog.cluster.default_replicas,
    )


async def update_cluster(
    request: UpdateClusterRequest, propose: Callable[[Command], Awaitable[Event]]
) -> None:
    """Put the settings of a request in force; returns when they are durable on a majority.

    Raises:
        InvalidConfig: there cannot be so many voters; nothing has changed.
        JetstreamError: another typed refusal; some of the settings may be in force.
    """
    if "voters" in request.model_fields_set:
        await propose(SetVoters(request.voters))
        _log.info("another number of voters is wanted voters=%s", request.voters)
    if "default_replicas" in request.model_fields_set:
        replicas = request.default_replicas or REPLICAS_DEFAULT
        await propose(SetDefaultReplicas(replicas))
        _log.info("streams are created with other replicas default_replicas=%d", replicas)
