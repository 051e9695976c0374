"""The replicated catalogue as a node uses it: any member takes commands and returns their outcome.

A member is a voter or an observer (`metadata.node.members.port`), which makes no difference here.

A command is named, sent to the leader, and sent again under the same name until it is seen in the log,
which this member applies like every other: there is no answer that could be lost. The leader may die, or the
command arrive twice; it is applied once.

A node that is alone is a group of one: it needs no address, opens no connection, and leads as soon as its
first write is durable.

Invariant:
    M2: nothing is applied before it is durable here and on a majority.
        Held by test_no_fault_at_any_call_loses_a_proposal_or_splits_one.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any, Final

from envelope.errors import DeadlinePassed, DiskFull, InternalError, RequestError
from envelope.types import LogIndex, NodeId, Term
from metadata.catalog.catalog import Catalog, feature_refusal
from metadata.catalog.commands import Command, ForgetNode, encode_command
from metadata.catalog.events import Events, NodeRegistered
from metadata.catalog.tables import RegisteredNode
from metadata.limits import ENTRY_BYTES_MAX, SNAPSHOT_LOG_BYTES_MIN
from metadata.node.catalogue.replicated_catalog import (
    Applied,
    CatalogListener,
    ReplicatedCatalog,
    registered_addresses,
)
from metadata.node.members.changing_member import AsObserver, AsVoter, ChangingMember, opened
from metadata.node.members.parts import MemberParts
from metadata.node.peers.addresses import PeerAddresses
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.peers.listening import PeerServer
from metadata.node.storage.port import INITIAL_SNAPSHOT, Storage, Stored
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal
from metadata.raft.settings import RaftSettings

_RETRY_SECONDS: Final = 0.25
"""After so long without an outcome a command is sent again, a new leader or not: it may be lost."""

DEADLINE_SECONDS: Final = 10.0


class MetadataQuorum:
    """See the module; made on the event loop it runs on.

    Attributes:
        member: this node's part of the group; its ``run`` does the work.
        addresses: where other nodes are dialled.
    """

    def __init__(
        self,
        state: ReplicatedCatalog,
        parts: MemberParts,
        begin: AsVoter | AsObserver,
        storage: Storage | None = None,
    ) -> None:
        """Take part as ``begin`` says, with this state machine; `run` or `stop` closes the storage."""
        self._state = state
        self.addresses = parts.addresses
        self.member = ChangingMember(parts, begin, storage)
        parts.server.cluster_level = lambda: state.catalog.cluster.feature_level
        state.on_members = self.member.members_changed
        places = _RegisteredPlaces(self)
        state.subscribe(places)
        places.restored()

    @classmethod
    def voting(
        cls,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        storage: Storage,
        settings: RaftSettings,
        snapshot_log_bytes_min: int = SNAPSHOT_LOG_BYTES_MIN,
    ) -> "MetadataQuorum":
        """Go on with what a founder's storage holds, and own it; `run` or `stop` closes it.

        Args:
            identity: this node's.
            voters: the nodes with which the group began, with their addresses, this one too.
            storage: belongs to the group from now on.
            settings: times and limits.
            snapshot_log_bytes_min: bytes of log below which no snapshot is taken.

        Raises:
            CorruptDataError: its snapshot is damaged.
        """
        state = ReplicatedCatalog(storage.load().snapshot)
        parts = MemberParts(
            identity=identity,
            disk_name=identity.node_id,
            server=PeerServer(identity),
            addresses=PeerAddresses(voters),
            machine=state,
            settings=settings,
            open_storage=_no_storage,
            snapshot_log_bytes_min=snapshot_log_bytes_min,
        )
        return cls(state, parts, AsVoter(identity.node_id, frozenset(voters)), storage)

    @classmethod
    def observing(
        cls,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        settings: RaftSettings = RaftSettings(),  # noqa: B008 - frozen
    ) -> "MetadataQuorum":
        """Begin to keep up with a group, without a vote in it for ever; nothing of that is kept on disk.

        Args:
            identity: this node's.
            voters: nodes with a vote with their addresses, this node none of them.
            settings: times, those of the voters.
        """
        state = ReplicatedCatalog(INITIAL_SNAPSHOT)
        parts = MemberParts(
            identity=identity,
            disk_name=identity.node_id,
            server=PeerServer(identity),
            addresses=PeerAddresses(voters),
            machine=state,
            settings=settings,
            open_storage=_no_storage,
        )
        return cls(state, parts, AsObserver(frozenset(voters)))

    @classmethod
    async def open(
        cls,
        identity: PeerIdentity,
        begin: AsVoter | AsObserver,
        addresses: PeerAddresses,
        disk_name: NodeId,
        open_storage: Callable[[NodeId], Storage],
        settings: RaftSettings = RaftSettings(),  # noqa: B008 - frozen
    ) -> "MetadataQuorum":
        """Take part as ``begin`` says, and from then on as the group does.

        Args:
            identity: this node's.
            begin: a voter, whose storage is opened on a thread, or an observer.
            addresses: where other nodes are; the catalogue's are added.
            disk_name: of the member that this node is, if it becomes one.
            open_storage: see `MemberParts`.
            settings: times and limits.

        Raises:
            CorruptDataError: bytes that had been durable are damaged or missing; nothing was changed.
            StorageError: the disk refused.
            DiskFull: there is no room to begin.
        """
        storage: Storage | None = None
        with contextlib.ExitStack() as unless_made:
            stored: Stored | None = None
            if isinstance(begin, AsVoter):
                storage = await opened(open_storage, begin.name)
                unless_made.callback(storage.close)
                stored = storage.load()
                for node, address in registered_addresses(stored.snapshot, stored.entries):
                    addresses.hear(node, address)
            state = ReplicatedCatalog(INITIAL_SNAPSHOT if stored is None else stored.snapshot)
            parts = MemberParts(
                identity=identity,
                disk_name=disk_name,
                server=PeerServer(identity),
                addresses=addresses,
                machine=state,
                settings=settings,
                open_storage=open_storage,
            )
            group = cls(state, parts, begin, storage)
            unless_made.pop_all()
        return group

    @property
    def catalog(self) -> Catalog:
        """The catalogue as far as this member has applied it; to be read, never applied to.

        The same object for ever: it goes on in place, also where another voter's snapshot replaces it all.
        """
        return self._state.catalog

    @property
    def voters(self) -> frozenset[NodeId]:
        """All voters of the group; this node need not be one of them."""
        return self.member.part.voters

    @property
    def leader(self) -> NodeId | None:
        """The leader of the metadata log, as far as this member knows."""
        return self.member.part.leader

    @property
    def term(self) -> Term:
        """The newest term that this member knows of; with the leader it tells one reign from another."""
        return self.member.part.term

    @property
    def problem(self) -> str | None:
        """Why this member is out of touch with the group, for people; None if it is not, or cannot tell."""
        return self.member.part.problem

    @property
    def is_voter(self) -> bool:
        """Whether this node takes part in what is decided, or is about to."""
        return self.member.is_voter

    def subscribe(self, listener: CatalogListener) -> None:
        """Call ``listener`` for every entry that is applied here from now on, for as long as the group runs.

        After a start, entries behind the last snapshot are applied again, and so reported again.
        """
        self._state.subscribe(listener)

    async def run(self, listening: socket.socket | None) -> None:
        """Take part until cancelled; the storage is closed when this returns.

        Args:
            listening: bound to this member's address; None if it is the only voter.

        Raises:
            Exception: the error of the disk, or of ours, after which the voter is silent.
            ExceptionGroup: several of them.
        """
        try:
            await self.member.run(listening)
        except ExceptionGroup as failures:
            if len(failures.exceptions) > 1:
                raise
            raise failures.exceptions[0] from None

    async def stop(self) -> None:
        """Close the storage, everything that was handed to the disk being written; harmless if it is closed.

        `run` does so when it ends; this is for a group that may never have begun to run.
        """
        await self.member.part.stop()

    async def led(self) -> NodeId:
        """Return the leader, once this member knows it."""
        while (leader := self.leader) is None:
            await asyncio.shield(self._state.next_leader())  # others wait for it as well
        return leader

    def next_leader(self) -> "asyncio.Future[NodeId]":
        """Return what will be the next leader that this member hears of; one future for all who wait."""
        return self._state.next_leader()

    async def propose(self, command: Command, deadline_seconds: float | None = DEADLINE_SECONDS) -> Applied:
        """Propose a command, applied once; return its outcome when it is applied here.

        It is durable on a majority then. Cancelled or late, it may be applied all the same.
        `Applied.answer` gives the answer, or raises the refusal.

        Args:
            command: what to do.
            deadline_seconds: how long to try; None tries for ever. Proposing a command again after a deadline
                is another proposal: both may be applied.

        Raises:
            RequestError: the command is too large.
            FeatureLevelTooLow, NodesTooOld: there may be nodes that cannot read it; nothing is in the log.
            DiskFull: there is no other voter, and this one's disk was full before: nothing is stored.
            DeadlinePassed: there was no leader, or no majority; it may be applied or not.
        """
        error = feature_refusal(self.catalog, command)
        if error is not None:
            raise error
        data = encode_command(command)
        if len(data) + PROPOSAL_ID_BYTES > ENTRY_BYTES_MAX:
            raise RequestError(f"a command of {len(data)} bytes exceeds {ENTRY_BYTES_MAX}")
        disk_full = self.member.part.disk_full
        if self.member.is_alone and disk_full is not None:
            raise DiskFull(disk_full.description)
        proposal_id = ProposalId(secrets.token_bytes(PROPOSAL_ID_BYTES))
        payloads = (encode_proposal(proposal_id, data),)
        outcome = self._state.outcome(proposal_id)
        try:
            async with asyncio.timeout(deadline_seconds):
                while not outcome.done():
                    self.member.forward(payloads)
                    waits: set[asyncio.Future[Any]] = {outcome, self._state.next_leader()}
                    await asyncio.wait(waits, timeout=_RETRY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            outcome.cancel()
            raise DeadlinePassed(
                f"no answer of the metadata log within {deadline_seconds} s: no leader, or no majority"
            ) from None
        return outcome.result()

    async def catch_up(self) -> None:
        """Return when everything that was committed before this call is applied here; needs a majority.

        It lets the log take a command that the catalogue refuses in every version, and waits for the refusal.
        """
        await self.propose(ForgetNode(NodeId("")), deadline_seconds=None)

    async def reached(self, index: LogIndex) -> None:
        """Return when everything up to ``index`` is applied here."""
        await self._state.reached(index)

    async def read(self) -> Catalog:
        """Return the catalogue with everything that was committed before this call; ask the leader.

        Raises:
            NotLeader: this member does not lead.
        """
        await self._state.reached(await self.member.part.read())
        return self.catalog


class _RegisteredPlaces:
    """A `CatalogListener`: nodes are where they have registered, until they say something else."""

    def __init__(self, group: MetadataQuorum) -> None:
        self._group = group

    def applied(self, events: Events) -> None:
        """See `CatalogListener.applied`."""
        for event in events:
            if isinstance(event, NodeRegistered):
                self._hear(event.node)

    def restored(self) -> None:
        """See `CatalogListener.restored`."""
        for node in self._group.catalog.nodes():
            self._hear(node)

    def _hear(self, node: RegisteredNode) -> None:
        if node.peer_host is not None and node.peer_port is not None:
            self._group.addresses.hear(node.node_id, Address(node.peer_host, node.peer_port))


def _no_storage(name: NodeId) -> Storage:
    raise InternalError(f"{name} has no storage")
