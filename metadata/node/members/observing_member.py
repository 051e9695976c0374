"""A node without a vote as a member of the metadata group: an observer, and its connections to the voters.

It needs nothing on disk: voters give it all that it has, again at every start
(`metadata.raft.observer`). Commands, and the node's messages about leases, go to the metadata leader; as
commands have names, a repeated one is applied once.
"""

import asyncio
import logging
from collections.abc import Collection
from functools import partial
from typing import Final

from envelope.errors import CorruptDataError, DiskFull, RemoteProtocolError, UnsupportedFeatureLevel
from envelope.types import LogIndex, NodeId, Term
from metadata.members import node_of
from metadata.node.members.parts import MemberParts
from metadata.node.peers.dialling import OBSERVER, Address, keep_link
from metadata.node.peers.listening import PeerRefusal
from metadata.node.peers.voter_links import RECEIVE_BYTES, Outlets
from metadata.node.timers.movable_timer import MovableTimer, now
from metadata.node.voter.pending_reads import not_leader
from metadata.node.voter.voter import CommittedMembers
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import Apply, ChangeMembers, MetadataLeaderChanged, Restore
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.messages.observer_messages import ObserverMessage
from metadata.raft.messages.wire import Forwarded, MessageReader
from metadata.raft.observer import (
    Observer,
    ObserverAction,
    ObserverEvent,
    ReceivedFromVoter,
    SendToVoter,
    TimePassed,
    VoterConnected,
    VoterDisconnected,
)

_log = logging.getLogger(__name__)

_NOTHING: Final = LogIndex(0)


class ObserverMember:
    """A `MetadataMember` without a vote. Made on the event loop it runs on.

    Attributes:
        disk_full: None: it writes nothing.
    """

    def __init__(self, parts: MemberParts, voters: Collection[NodeId], as_of: LogIndex = _NOTHING) -> None:
        """Begin with what the state machine has applied; `run` connects it.

        Args:
            parts: of the node.
            voters: nodes with a vote, until the log has named others behind ``as_of``.
            as_of: the index of the metadata log at which others have named them.
        """
        self.disk_full: DiskFull | None = None
        self._parts = parts
        self._identity = parts.identity
        self._machine = parts.machine
        self._told = as_of, frozenset(voters)
        self._observer = Observer(parts.identity.node_id, (), parts.settings, parts.machine.position)
        self._outlets = Outlets()
        self._addresses: dict[NodeId, Address] = {}
        self._links: dict[NodeId, asyncio.Task[None]] = {}
        self._running: asyncio.TaskGroup | None = None
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wake_up = MovableTimer(lambda: self.handle(TimePassed()))
        self._heard_voters = True  # so that the first look tells that none is heard
        self.follow()

    @property
    def voters(self) -> frozenset[NodeId]:
        """See `MetadataMember.voters`."""
        known, (told_index, told) = self._machine.members, self._told
        if known.configuration is None or told_index > known.index:
            return told
        return frozenset(map(node_of, known.configuration.electorate))

    @property
    def leader(self) -> NodeId | None:
        """See `MetadataMember.leader`."""
        return self._observer.leader

    @property
    def term(self) -> Term:
        """See `MetadataMember.term`."""
        return self._observer.term

    @property
    def problem(self) -> str | None:
        """See `MetadataMember.problem`."""
        if not self._observer.hears_voters:
            return f"no voter of the metadata log answers: {', '.join(sorted(self.voters))}"
        return None if self.leader is not None else "the voters of the metadata log have no leader"

    async def run(self) -> None:
        """See `MetadataMember.run`."""
        try:
            objection = partial(_objection, self._identity.node_id)
            with self._parts.server.serve(OBSERVER, _converse_with_nobody, objection):
                async with asyncio.TaskGroup() as tasks:
                    self._running = tasks
                    try:
                        self._dial_all(tasks)
                        self._look_for_voters()
                        await self._failure
                    finally:
                        self._running = None  # a group that ends takes no more tasks
        finally:
            await self.stop()

    async def stop(self) -> None:
        """See `MetadataMember.stop`: there is nothing to finish."""
        self._wake_up.cancel()
        self._failure.cancel()

    def follow(self) -> None:
        """See `MetadataMember.follow`."""
        addresses: dict[NodeId, Address] = {}
        for voter in sorted(self.voters - {self._identity.node_id}):
            address = self._parts.addresses.of(voter)
            if address is not None:
                addresses[voter] = address
        before, self._addresses = self._addresses, addresses
        for voter, link in tuple(self._links.items()):
            if addresses.get(voter) != before[voter]:
                link.cancel()
                del self._links[voter]
                if voter in self._outlets:
                    self.handle(VoterDisconnected(voter))
        self._observer.follow(addresses)
        if self._running is not None:
            self._dial_all(self._running)

    def be_told(self, told: CommittedMembers, voters: Collection[NodeId]) -> None:
        """See `MetadataMember.be_told`."""
        if told.index >= self._told[0]:
            self._told = told.index, frozenset(voters)
            self.follow()

    def has_left(self, index: LogIndex, configuration: Configuration) -> bool:
        """See `MetadataMember.has_left`: it never was one."""
        del index, configuration
        return False

    def _dial_all(self, tasks: asyncio.TaskGroup) -> None:
        for voter, address in self._addresses.items():
            if voter not in self._links:
                link = _VoterLink(voter, self, self._parts, self._outlets)
                dialling = keep_link(
                    self._identity, voter, address, OBSERVER, link=link, callers=self._parts.server.callers
                )
                self._links[voter] = tasks.create_task(dialling)

    def forward(self, payloads: tuple[bytes, ...]) -> None:
        """See `MetadataMember.forward`."""
        leader = self.leader
        if leader is not None:
            self._outlets.send(Forwarded(self._identity.node_id, leader, payloads))

    def send(self, message: NodeMessage) -> None:
        """See `MetadataMember.send`: only voters are connected."""
        self._outlets.send(message)

    def membership(self) -> QuorumState | None:
        """See `MetadataMember.membership`: an observer never leads."""
        return None

    def change_members(self, change: ChangeMembers) -> None:
        """See `MetadataMember.change_members`: only a leader can."""
        del change

    async def read(self) -> LogIndex:
        """See `MetadataMember.read`.

        Raises:
            NotLeader: always: an observer never leads.
        """
        raise not_leader(self.leader)

    # --- messages of voters -----------------------------------------------------------------------

    def handle(self, event: ObserverEvent) -> None:
        """Handle an event of a connection, or that time has passed.

        Raises:
            RemoteProtocolError: a voter's message makes no sense; its connection is to be closed.
        """
        if self._failure.done():
            return
        try:
            for action in self._observer.handle(event, now()):
                self._perform(action)
        except (CorruptDataError, UnsupportedFeatureLevel) as error:
            _log.error("the observer of the metadata log stops error=%r", error)
            self._failure.set_exception(error)
            return
        self._wake_up.at(self._observer.wake_at)
        self._look_for_voters()

    def _perform(self, action: ObserverAction) -> None:
        match action:
            case SendToVoter(question):
                if not self._outlets.send(question):
                    _log.debug("a question for peer=%s was lost with its connection", question.target)
            case Apply(entries):
                self._machine.apply(entries)
            case Restore(snapshot):
                self._machine.restore(snapshot)
            case MetadataLeaderChanged(leader, term):
                _log.info("metadata leader=%s term=%s", leader, term)
                self._machine.leader_changed(leader, term)

    def _look_for_voters(self) -> None:
        """Log that no voter is heard, and that one is heard again; once each."""
        if self._observer.hears_voters == self._heard_voters:
            return
        self._heard_voters = not self._heard_voters
        if self._heard_voters:
            _log.info("a voter of the metadata log answers: %s", self._observer)
        else:
            _log.warning("waiting for a voter of the metadata log voters=%s", ",".join(sorted(self.voters)))


def _objection(node: NodeId, source: NodeId) -> PeerRefusal:
    return PeerRefusal(f"{node} has no vote, so {source} cannot observe it", later=True)


async def _converse_with_nobody(
    source: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Refuse a node that comes to observe an observer."""
    del source, reader, writer


class _VoterLink:
    """The `Link` to one voter, on which both sides speak."""

    def __init__(self, voter: NodeId, member: ObserverMember, parts: MemberParts, outlets: Outlets) -> None:
        """``outlets`` has the connection while there is one."""
        self._voter = voter
        self._member = member
        self._parts = parts
        self._outlets = outlets

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See `Link.talk`."""
        self._outlets.put(self._voter, writer)
        try:
            self._member.handle(VoterConnected(self._voter))
            messages = MessageReader(self._voter, self._parts.identity.node_id)
            while data := await reader.read(RECEIVE_BYTES):
                for message in messages.feed(data):
                    if isinstance(message, ObserverMessage):
                        self._member.handle(ReceivedFromVoter(message))
                    elif isinstance(message, NodeMessage):
                        self._parts.deliver(message)
                    else:
                        raise RemoteProtocolError(
                            f"a voter does not say {type(message).__name__} to an observer"
                        )
        finally:
            self._outlets.remove(self._voter, writer)

    def broken(self) -> None:
        """See `Link.broken`."""
        self._member.handle(VoterDisconnected(self._voter))

    def unreached(self, *, refused: bool) -> None:
        """See `Link.unreached`: a voter that was never reached is not heard."""
        del refused
