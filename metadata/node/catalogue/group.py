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
from collections.abc import Mapping
from typing import Any, Final

from envelope.errors import DeadlinePassed, DiskFull, InvalidConfig, RequestError
from envelope.types import LogIndex, NodeId, Term
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, encode_command
from metadata.limits import ENTRY_BYTES_MAX, SNAPSHOT_LOG_BYTES_MIN
from metadata.node.catalogue.replicated_catalog import (
    Applied,
    CatalogListener,
    ReplicatedCatalog,
    last_registration,
)
from metadata.node.members.observing_member import ObserverMember
from metadata.node.members.port import MetadataMember
from metadata.node.members.voting_member import VotingMember
from metadata.node.peers.dialling import Address, PeerIdentity
from metadata.node.storage.disk_port import MetadataDisk
from metadata.node.storage.file_storage import FileStorage
from metadata.node.storage.port import Storage, Stored
from metadata.raft.proposals import PROPOSAL_ID_BYTES, ProposalId, encode_proposal
from metadata.raft.settings import RaftSettings
from metadata.raft.state import Snapshot

_RETRY_SECONDS: Final = 0.25
"""After so long without an outcome a command is sent again, a new leader or not: it may be lost."""

DEADLINE_SECONDS: Final = 10.0


class MetadataQuorum:
    """See the module; made on the event loop it runs on.

    Attributes:
        member: this node's part of the group; its ``run`` does the work.
    """

    def __init__(self, state: ReplicatedCatalog, member: MetadataMember) -> None:
        """Use a member whose state machine is ``state``; `run` or `stop` closes it."""
        self._state = state
        self.member = member

    @classmethod
    def voting(
        cls,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        storage: Storage,
        settings: RaftSettings,
        snapshot_log_bytes_min: int = SNAPSHOT_LOG_BYTES_MIN,
    ) -> "MetadataQuorum":
        """Go on with what a voter's storage holds, and own it; `run` or `stop` closes it.

        Args:
            identity: this member's.
            voters: all members with their addresses, this one too; the same for all of them and for ever.
            storage: belongs to the group from now on.
            settings: times and limits.
            snapshot_log_bytes_min: bytes of log below which no snapshot is taken.

        Raises:
            CorruptDataError: its snapshot is damaged.
        """
        state = ReplicatedCatalog(storage.load().snapshot)
        member = VotingMember(
            identity, voters, storage, state, settings, snapshot_log_bytes_min=snapshot_log_bytes_min
        )
        return cls(state, member)

    @classmethod
    def observing(
        cls,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        settings: RaftSettings = RaftSettings(),  # noqa: B008 - frozen
    ) -> "MetadataQuorum":
        """Begin to keep up with a group without a vote in it; nothing of that is kept on disk.

        Args:
            identity: this member's.
            voters: all voters with their addresses, this node none of them.
            settings: times, those of the voters.
        """
        state = ReplicatedCatalog(Snapshot(LogIndex(0), Term(0), b""))
        return cls(state, ObserverMember(identity, voters, state, settings))

    @classmethod
    async def open(
        cls,
        disk: MetadataDisk,
        directory: str,
        identity: PeerIdentity,
        voters: Mapping[NodeId, Address],
        settings: RaftSettings = RaftSettings(),  # noqa: B008 - frozen
        *,
        create: bool,
    ) -> "MetadataQuorum":
        """Open a voter's storage in ``directory``, on a thread, and go on with what it holds.

        Args:
            disk: where.
            directory: relative to the disk; its parent exists.
            identity: this member's.
            voters: as of making one.
            settings: times and limits.
            create: False if the storage must be there, because other things on this disk say so.

        Raises:
            CorruptDataError: bytes that had been durable are damaged or missing; nothing was changed.
            StorageError: the disk refused.
            DiskFull: there is no room to begin.
            InvalidConfig: the node was alone when it wrote this and is not now, or the other way round:
                voters without its entries could outvote it, or it would commit what others never had.
        """

        def opened() -> FileStorage:
            storage = FileStorage.open(disk, directory, create=create)
            with contextlib.ExitStack() as unless_right:
                unless_right.callback(storage.close)
                _check_company(storage.load(), identity.node_id, alone=len(voters) == 1)
                unless_right.pop_all()
            return storage

        storage = await asyncio.to_thread(opened)
        with contextlib.ExitStack() as unless_made:
            unless_made.callback(storage.close)
            group = cls.voting(identity, voters, storage, settings)
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
        return self.member.voters

    @property
    def leader(self) -> NodeId | None:
        """The leader of the metadata log, as far as this member knows."""
        return self.member.leader

    @property
    def term(self) -> Term:
        """The newest term that this member knows of; with the leader it tells one reign from another."""
        return self.member.term

    @property
    def problem(self) -> str | None:
        """Why this member is out of touch with the group, for people; None if it is not, or cannot tell."""
        return self.member.problem

    @property
    def is_voter(self) -> bool:
        """Whether this member has a vote, and so may lead."""
        return isinstance(self.member, VotingMember)

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
        await self.member.stop()

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
            DiskFull: there is no other voter, and this one's disk was full before: nothing is stored.
            DeadlinePassed: there was no leader, or no majority; it may be applied or not.
        """
        data = encode_command(command)
        if len(data) + PROPOSAL_ID_BYTES > ENTRY_BYTES_MAX:
            raise RequestError(f"a command of {len(data)} bytes exceeds {ENTRY_BYTES_MAX}")
        if self.member.is_alone and self.member.disk_full is not None:
            raise DiskFull(self.member.disk_full.description)
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

    async def reached(self, index: LogIndex) -> None:
        """Return when everything up to ``index`` is applied here."""
        await self._state.reached(index)

    async def read(self) -> Catalog:
        """Return the catalogue with everything that was committed before this call; ask the leader.

        Raises:
            NotLeader: this member does not lead.
        """
        await self._state.reached(await self.member.read())
        return self.catalog


def _check_company(stored: Stored, node_id: NodeId, *, alone: bool) -> None:
    registered = last_registration(stored.snapshot, stored.entries, node_id)
    if registered is None or alone == (registered.peer_host is None):
        return
    if alone:
        raise InvalidConfig(f"node {node_id} is a voter of a cluster: it cannot go on without its peers")
    raise InvalidConfig(f"node {node_id} was alone: its metadata cannot become that of a cluster")
