"""A voter of the metadata group as it runs: with its connections to the others, and to observers."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Collection
from dataclasses import replace
from operator import attrgetter
from typing import Final

from envelope.errors import DiskFull, NotLeader, Overloaded
from envelope.types import LogIndex, NodeId, Term
from metadata.members import node_of
from metadata.node.members.observers import Observers
from metadata.node.members.parts import MemberParts
from metadata.node.peers.dialling import Address
from metadata.node.peers.voter_links import PeerNetwork
from metadata.node.storage.port import Storage
from metadata.node.timers.movable_timer import now
from metadata.node.voter.voter import CommittedMembers, Voter
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import ChangeMembers, Proposed
from metadata.raft.machine import Raft
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.messages.observer_messages import ObserverMessage
from metadata.raft.messages.wire import Forwarded, Sent

_log = logging.getLogger(__name__)

_TOKEN_BITS: Final = 63


class VotingMember:
    """A `MetadataMember` with a vote, or about to get one. Made on the event loop it runs on.

    Attributes:
        voter: the running voter.
        network: the connections to the other members.
    """

    def __init__(
        self, parts: MemberParts, name: NodeId, founders: Collection[NodeId], storage: Storage
    ) -> None:
        """Go on with what the storage holds; `run` connects it.

        Args:
            parts: of the node; the state machine holds what the storage's snapshot says, or more.
            name: of this member; of one that joins it is that of its disk.
            founders: the members with which the group began, this one among them; none: it joins a group.
            storage: belongs to the member from now on.
        """
        self.name = name
        self._node_id = parts.identity.node_id
        self._founders = frozenset(founders)
        self._parts = parts
        self._told = CommittedMembers(LogIndex(0), None)
        stored = storage.load()
        if stored.snapshot.index > parts.machine.position.index:
            parts.machine.restore(stored.snapshot)  # it became durable while an earlier part ended
        token = secrets.randbits(_TOKEN_BITS) if stored.is_blank and founders else None
        raft = Raft(name, self._founders, parts.settings, stored, now=now(), recovery_token=token)
        self._recovery = raft.recovery
        self.network = PeerNetwork(replace(parts.identity, node_id=name), parts.server)
        self.voter = Voter(
            raft,
            storage,
            parts.machine,
            self.network.send,
            snapshot_log_bytes_min=parts.snapshot_log_bytes_min,
        )
        self._observers = Observers(
            self._node_id,
            self.voter.answer,
            lambda: (self.leader, self.term),
            parts.settings.heartbeat_interval_ns,
        )
        self.voter.on_moved = self._observers.moved
        self.voter.on_correspondents = self.follow
        self.follow()

    @property
    def voters(self) -> frozenset[NodeId]:
        """See `MetadataMember.voters`."""
        return frozenset(map(node_of, self.voter.raft.configuration.electorate))

    @property
    def leader(self) -> NodeId | None:
        """See `MetadataMember.leader`."""
        leader = self.voter.leader
        return None if leader is None else node_of(leader)

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

    async def run(self) -> None:
        """See `MetadataMember.run`; the storage is closed when this returns."""
        try:
            with self._observers.served(self._parts.server, self):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._fail_with_voter())
                    tasks.create_task(self._observers.run())
                    tasks.create_task(self.network.run(self))
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
        if leader == self.name:
            self._propose(payloads)
        elif leader is not None:
            self.network.send(Forwarded(self.name, leader, payloads))

    def _propose(self, payloads: tuple[bytes, ...]) -> None:
        """Propose payloads, which are lost if this member does not lead, or is overloaded."""
        with contextlib.suppress(NotLeader, Overloaded):
            self.voter.propose(payloads)

    def membership(self) -> QuorumState | None:
        """See `MetadataMember.membership`."""
        return self.voter.quorum

    def change_members(self, change: ChangeMembers) -> None:
        """See `MetadataMember.change_members`."""
        answer = self.voter.ask(change)
        if isinstance(answer, Proposed):
            _log.info("members change voters=%s learners=%s", *map(_listed, (change.voters, change.learners)))
        else:
            _log.debug("members do not change yet voters=%s: %s", _listed(change.voters), answer)

    def send(self, message: NodeMessage) -> None:
        """See `MetadataMember.send`: a node observes, or is connected as a member, or cannot be told."""
        if message.target == self._node_id:
            self._parts.deliver(message)
        elif not self._observers.send(message):
            for member in self.network.peers:
                if node_of(member) == message.target:
                    self.network.send(replace(message, source=self.name, target=member))

    # --- who the others are -----------------------------------------------------------------------

    def follow(self) -> None:
        """See `MetadataMember.follow`.

        A member that joins, or was away, speaks with those whom its own log does not name yet.
        """
        members = self.voter.correspondents
        newest = max(self._told, self._parts.machine.members, key=attrgetter("index"))
        named_at = self.voter.raft.log.configurations.newest_index
        if newest.configuration is not None and newest.index > named_at:
            members |= newest.configuration.members - {self.name}
        peers: dict[NodeId, Address] = {}
        for member in sorted(members):
            address = self._parts.addresses.of(node_of(member))
            if address is not None:
                peers[member] = address
        self.network.follow(peers)

    def be_told(self, told: CommittedMembers, voters: Collection[NodeId]) -> None:
        """See `MetadataMember.be_told`."""
        del voters  # they are among the members
        if told.index > self._told.index:
            self._told = told
            self.follow()

    def has_left(self, index: LogIndex, configuration: Configuration) -> bool:
        """See `MetadataMember.has_left`.

        A configuration that this log names behind ``index``, and that names this member, may be committed
        later. A founder that has lost its disk, and waits for the others' word, does not get it once others
        vote (`metadata.raft.recovery`).
        """
        if self._recovery.unanswered and self._founders != frozenset(configuration.electorate):
            return True
        if self.name in configuration.members or index < self._parts.machine.members.index:
            return False
        log = self.voter.raft.log
        is_named_here = any(self.name in each.members for each in log.possible_configurations)
        return index >= log.configurations.newest_index or not is_named_here

    # --- the network's Listener -------------------------------------------------------------------

    def received(self, message: Sent) -> None:
        """See `Listener.received`."""
        if isinstance(message, Forwarded):
            if all(map(self._parts.machine.can_apply, message.payloads)):
                self._propose(message.payloads)  # not forwarded again: it might go round and round
            else:
                _log.error("peer=%s forwards what this version cannot apply", message.source)
        elif isinstance(message, NodeMessage):
            self._parts.deliver(replace(message, source=node_of(message.source), target=self._node_id))
        elif isinstance(message, ObserverMessage):
            _log.error("peer=%s has a vote and observes", message.source)
        else:
            self.voter.received(message)

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """See `Listener.disconnected`."""
        self.voter.disconnected(peer, refused=refused)

    async def _fail_with_voter(self) -> None:
        await self.voter.failure


def _listed(names: Collection[NodeId]) -> str:
    return ",".join(names)
