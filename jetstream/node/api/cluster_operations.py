"""The requests about the cluster as a whole: its nodes, its settings, its feature level."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from envelope.errors import JetstreamError
from envelope.types import NodeEpoch, NodeId
from jetstream.node.api.group_operations import NodeWays
from jetstream.node.api.internal_streams import count_internal
from jetstream.protocol.requests import PROTOCOL_VERSION
from metadata.api.requests import ClusterInfoRequest, UpdateClusterRequest
from metadata.api.responses import ClusterInfo, NodeInfo, NodeRole, NodeStart
from metadata.api.routing import node_subject
from metadata.api.wire import decode_response, encode_request
from metadata.catalog.commands import Command, NodeLevel, SetDefaultReplicas, SetFeatureLevel, SetVoters
from metadata.catalog.tables import RegisteredNode
from metadata.features import LATEST_LEVEL
from metadata.limits import REPLICAS_DEFAULT
from metadata.members import node_of
from metadata.node.catalogue.group import MetadataQuorum

_log = logging.getLogger(__name__)

_ANSWER_SECONDS: Final = 1.0
"""How long a node may take to say what it can; NATS says at once that one is gone."""


def _voters_and_learners(metadata: MetadataQuorum) -> tuple[list[NodeId], list[NodeId]]:
    """Return the nodes that decide, and those that are about to, as far as this node has applied the log.

    While voters change, those of before still have to agree to everything, also to the end of that.
    """
    members = metadata.member.told.configuration
    if members is None:
        return [*metadata.voters], []
    voters = members.outgoing or members.voters
    return [*map(node_of, voters)], [*map(node_of, members.members.difference(voters))]


class ClusterOperations:
    """Answers them; used on the loop's thread."""

    def __init__(
        self,
        cluster: str,
        ways: NodeWays,
        metadata: MetadataQuorum,
        alive: Callable[[], frozenset[NodeId] | None],
        node_epoch: Callable[[], NodeEpoch],
    ) -> None:
        """Prepare.

        Args:
            cluster: its name.
            ways: this node, and its way to the others.
            metadata: this node's part of the quorum.
            alive: returns the nodes that are alive; None: this node does not know.
            node_epoch: returns that of this start; 0 before it has registered.
        """
        self._cluster = cluster
        self._ways = ways
        self._metadata = metadata
        self._catalog = metadata.catalog
        self._alive = alive
        self._node_epoch = node_epoch

    async def update(self, request: UpdateClusterRequest) -> ClusterInfo:
        """Change what the request names; returns when it is durable, the feature level first.

        Raises:
            NodesTooOld: the feature level stays, as the named nodes cannot do as much, or have not answered.
            FeatureLevelTooLow: nodes of the cluster's feature level do not know the setting.
            InvalidConfig: the feature level would go back, or there cannot be so many voters.
        """
        if "feature_level" in request.model_fields_set:
            level = LATEST_LEVEL if request.feature_level == "latest" else request.feature_level
            await self._raise_feature_level(level)
        if "voters" in request.model_fields_set:
            await self._propose(SetVoters(request.voters))
            _log.info("another number of voters is wanted voters=%s", request.voters)
        if "default_replicas" in request.model_fields_set:
            replicas = request.default_replicas or REPLICAS_DEFAULT
            await self._propose(SetDefaultReplicas(replicas))
            _log.info("streams are created with other replicas default_replicas=%d", replicas)
        return self.info()

    def info(self) -> ClusterInfo:
        """Return the nodes of the cluster, and which are alive if this node knows."""
        alive = self._alive()
        levels = {**self._metadata.member.server.feature_levels, self._ways.node_id: LATEST_LEVEL}
        row, (voters, learners) = self._catalog.cluster, _voters_and_learners(self._metadata)
        return ClusterInfo(
            name=self._cluster,
            cluster_id=row.cluster_id,
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
                    feature_level=levels.get(node.node_id),
                )
                for node in self._catalog.nodes()
            ],
            metadata_leader=self._metadata.leader,
            voters=sorted(voters),
            learners=sorted(learners),
            voters_wanted=row.voters_wanted,
            streams=self._catalog.count_streams() - count_internal(self._catalog),
            protocol_versions=[PROTOCOL_VERSION],
            default_replicas=row.default_replicas,
            feature_level=row.feature_level,
            answered_by=NodeStart(
                id=self._ways.node_id, node_epoch=self._node_epoch(), feature_level=LATEST_LEVEL
            ),
        )

    async def _raise_feature_level(self, level: int) -> None:
        """Ask every node what it can, as it runs now, and let the catalogue decide.

        The greetings of peers do not count: they may be of an earlier start.
        """
        answers = await asyncio.gather(*map(self._start_of, self._catalog.nodes()))
        starts = tuple(
            NodeLevel(NodeId(start.id), NodeEpoch(start.node_epoch), start.feature_level)
            for start in answers
            if start is not None
        )
        await self._propose(SetFeatureLevel(level, starts))
        _log.info("the cluster is at feature_level=%d", self._catalog.cluster.feature_level)

    async def _start_of(self, node: RegisteredNode) -> NodeStart | None:
        """Return what a node says of itself, level 0 if it knows of no levels; None: it gives no answer."""
        if node.node_id == self._ways.node_id:
            return self.info().answered_by
        subject = node_subject(self._ways.prefix, node.node_id, "cluster.info")
        try:
            answer = await self._ways.link.request(
                subject, encode_request(ClusterInfoRequest()), _ANSWER_SECONDS
            )
            info = decode_response(ClusterInfo, answer)
        except JetstreamError as error:
            _log.info("node=%s does not say what it can error=%s", node.node_id, error)
            return None
        return info.answered_by or NodeStart(id=node.node_id, node_epoch=node.node_epoch, feature_level=0)

    async def _propose(self, command: Command) -> None:
        (await self._metadata.propose(command)).answer()
