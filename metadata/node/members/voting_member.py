"""A voter of the metadata group as it runs: with its connections to the others, and to observers."""

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Final

from envelope.errors import DiskFull, NotLeader, Overloaded
from envelope.types import LogIndex, NodeId, Term
from metadata.limits import SNAPSHOT_LOG_BYTES_MIN
from metadata.node.members.observers import Observers
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.peers.listening import PeerServer
from metadata.node.peers.voter_links import PeerNetwork
from metadata.node.storage.port import Storage
from metadata.node.timers.movable_timer import now
from metadata.node.voter.voter import StateMachine, Voter
from metadata.raft.machine import Raft
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.messages.observer_messages import ObserverMessage
from metadata.raft.messages.wire import Forwarded, Sent
from metadata.raft.settings import RaftSettings

_log = logging.getLogger(__name__)

_TOKEN_BITS: Final = 63


class VotingMember:
    """A `MetadataMember` with a vote. Made on the event loop it runs on.

    Attributes:
        voter: the running voter.
        network: the connections to the other voters.
        voters: all of them.
        is_alone: whether the group has no other voter, and so no other can ever lead.
    """

    def __init__(
        self,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        storage: Storage,
        machine: StateMachine,
        settings: RaftSettings,
        snapshot_log_bytes_min: int = SNAPSHOT_LOG_BYTES_MIN,
    ) -> None:
        """Go on with what the storage holds; `run` connects it.

        Args:
            identity: this member's; ``voters`` has its address too.
            voters: all voters, the same for all of them and for ever.
            storage: belongs to the member from now on.
            machine: holds what the storage's snapshot says.
            settings: times and limits.
            snapshot_log_bytes_min: bytes of log below which no snapshot is taken.
        """
        others = {peer: address for peer, address in voters.items() if peer != identity.node_id}
        self.is_alone = not others
        self.voters = frozenset(voters)
        self._node_id = identity.node_id
        self._machine = machine
        self._attendants: list[Callable[[NodeMessage], None]] = []
        stored = storage.load()
        token = secrets.randbits(_TOKEN_BITS) if stored.is_blank else None
        raft = Raft(identity.node_id, self.voters, settings, stored, now=now(), recovery_token=token)
        self._recovery = raft.recovery
        self.network = PeerNetwork(identity, others)
        self.voter = Voter(
            raft,
            storage,
            machine,
            self.network.send,
            transfer_targets=sorted(others),
            snapshot_log_bytes_min=snapshot_log_bytes_min,
        )
        self._observers = Observers(
            identity.node_id,
            self.voters,
            self.voter.answer,
            lambda: (self.leader, self.term),
            settings.heartbeat_interval_ns,
        )
        self.voter.on_moved = self._observers.moved

    @property
    def server(self) -> PeerServer:
        """See `MetadataMember.server`."""
        return self.network.server

    @property
    def leader(self) -> NodeId | None:
        """See `MetadataMember.leader`."""
        return self.voter.leader

    @property
    def term(self) -> Term:
        """See `MetadataMember.term`."""
        return self.voter.term

    @property
    def disk_full(self) -> DiskFull | None:
        """See `MetadataMember.disk_full`."""
        return self.voter.disk_full

    @property
    def problem(self) -> str | None:
        """See `MetadataMember.problem`; with a vote it knows no more than that nobody leads."""
        return self._recovery.problem

    async def run(self, listening: socket.socket | None) -> None:
        """See `MetadataMember.run`; the storage is closed when this returns."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._fail_with_voter())
                if listening is not None:
                    tasks.create_task(self._connect(listening))
        finally:
            await self.voter.stop()

    async def stop(self) -> None:
        """See `MetadataMember.stop`."""
        await self.voter.stop()

    async def read(self) -> LogIndex:
        """See `MetadataMember.read`."""
        return await self.voter.read()

    def forward(self, payloads: tuple[bytes, ...]) -> None:
        """See `MetadataMember.forward`."""
        leader = self.voter.leader
        if leader == self._node_id:
            self._propose(payloads)
        elif leader is not None:
            self.network.send(Forwarded(self._node_id, leader, payloads))

    def _propose(self, payloads: tuple[bytes, ...]) -> None:
        """Propose payloads, which are lost if this member does not lead, or is overloaded."""
        with contextlib.suppress(NotLeader, Overloaded):
            self.voter.propose(payloads)

    def attend(self, listener: Callable[[NodeMessage], None]) -> None:
        """See `MetadataMember.attend`."""
        self._attendants.append(listener)

    def send(self, message: NodeMessage) -> None:
        """See `MetadataMember.send`."""
        if message.target == self._node_id:
            self._deliver(message)
        elif message.target in self.voters:
            self.network.send(message)
        else:
            self._observers.send(message)

    def _deliver(self, message: NodeMessage) -> None:
        for listener in self._attendants:
            listener(message)

    # --- the network's Listener -------------------------------------------------------------------

    def received(self, message: Sent) -> None:
        """See `Listener.received`."""
        if isinstance(message, Forwarded):
            if all(map(self._machine.can_apply, message.payloads)):
                self._propose(message.payloads)  # not forwarded again: it might go round and round
            else:
                _log.error("peer=%s forwards what this version cannot apply", message.source)
        elif isinstance(message, NodeMessage):
            self._deliver(message)
        elif isinstance(message, ObserverMessage):
            _log.error("peer=%s has a vote and observes", message.source)
        else:
            self.voter.received(message)

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """See `Listener.disconnected`."""
        self.voter.disconnected(peer, refused=refused)

    async def _connect(self, listening: socket.socket) -> None:
        with self._observers.served(self.server, self):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._observers.run())
                tasks.create_task(self.network.run(listening, self))

    async def _fail_with_voter(self) -> None:
        await self.voter.failure
