"""The node as a member of its cluster: registered, with a lease, in touch with the others.

A node that is alone has no sessions and needs no lease: it elects itself.
"""

import asyncio
import logging
from concurrent.futures import Executor
from typing import Final

from envelope.types import NodeEpoch, NodeId
from jetstream.node.catch_up import CatchUp
from jetstream.node.clock import Clock
from jetstream.node.peer_settings import PeerSettings
from jetstream.node.replica_parts import ClusterServices, NoSessions
from jetstream.node.replica_session_ends import SessionSettings
from jetstream.node.replica_sessions import ReplicaSessions
from jetstream.node.streams import Streams
from jetstream.node.timers import Timers
from jetstream.replica.settings import ReplicaSettings
from jetstream.replica.throttle import Throttle
from metadata.catalog.commands import RegisterNode
from metadata.catalog.events import NodeRegistered
from metadata.node.membership import Membership
from metadata.node.metadata_group import MetadataGroup
from metadata.node.steward import Steward

_log = logging.getLogger(__name__)

_HAND_OVER_SECONDS: Final = 5.0
"""How long a node that stops waits for others to lead its streams."""

_FETCH_TIMEOUT_NS: Final = 30_000_000_000
"""A session loses nothing but with its connection, which is told."""

_ASK_AHEAD_RECORDS_MIN: Final = 32


class ClusterMember:
    """Wires membership, steward and sessions to a node's streams.

    Attributes:
        services: what the streams need of the cluster.
    """

    def __init__(self, group: MetadataGroup, peers: PeerSettings, clock: Clock, executor: Executor) -> None:
        """Prepare; `host` says whose streams these are, `run` does the work."""
        self._group = group
        self._peers = peers
        self._node_id = peers.identity.node_id
        self._executor = executor
        self._membership = Membership(group, self._node_id)
        self._steward = Steward(group, self._node_id)
        self._sessions: ReplicaSessions | None = None
        self._streams: Streams | None = None
        self._timers = Timers(clock)
        self.services = ClusterServices(
            node_id=self._node_id,
            lease=self._membership.lease,
            sessions=NoSessions(),
            timers=self._timers,
            propose=group.propose,
            epoch_of=self._epoch_of,
            settings=ReplicaSettings(
                fetch_timeout_ns=_FETCH_TIMEOUT_NS, ask_ahead_records_min=_ASK_AHEAD_RECORDS_MIN
            ),
            catch_up=CatchUp(Throttle(peers.catch_up_bytes)),
        )

    def host(self, streams: Streams) -> None:
        """Let the catalogue and the other nodes speak to ``streams``."""
        self._streams = streams
        self._group.subscribe(streams)
        self._membership.on_resumed = streams.traffic.lease_resumed
        streams.traffic.membership = self._membership
        others = {node: address for node, address in self._peers.voters.items() if node != self._node_id}
        if others:
            self._sessions = ReplicaSessions(
                self._peers.identity,
                others,
                streams.traffic,
                SessionSettings(),
                self._executor,
            )
            self.services.sessions = self._sessions

    async def run(self) -> None:
        """Take part until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._timers.run())
            if self._sessions is not None:
                tasks.create_task(self._membership.run())
                tasks.create_task(self._steward.run())
                tasks.create_task(self._sessions.run(self._group.member.network))

    async def join(self, registration: RegisterNode) -> None:
        """Register this start; who is alone leads all its streams anew, others are elected by the steward."""
        await self._group.led()
        applied = await self._group.propose(registration, deadline_seconds=None)
        registered = applied.answer()
        assert isinstance(registered, NodeRegistered), f"a registration is answered by {registered}"
        self.services.node_epoch = registered.node.node_epoch
        if self._sessions is not None:
            self._membership.begin(registered.node.node_epoch)
            return
        due = self._group.catalog.due_elections()
        for elected in await asyncio.gather(*map(self._group.propose, due)):
            elected.answer()

    async def leave(self) -> None:
        """Have others lead what they can."""
        if self._sessions is not None and self.services.node_epoch:
            if not await self._membership.stop(_HAND_OVER_SECONDS):
                _log.warning("stopping without having handed over everything")
            assert self._streams is not None, "streams are hosted before the node stops"
            await self._streams.settled()

    def alive(self) -> frozenset[NodeId] | None:
        """Return the nodes that can hold a new stream; None if another knows."""
        return frozenset((self._node_id,)) if self._sessions is None else self._steward.alive()

    def _epoch_of(self, node_id: NodeId) -> NodeEpoch:
        node = self._group.catalog.node(node_id)
        return node.node_epoch if node is not None else NodeEpoch(0)
