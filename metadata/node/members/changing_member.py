"""A node as a member of the metadata group for as long as it runs: with a vote or without, as the group says.

Theory of operation. The configuration that is committed says who has a vote, and every node has it in its
state machine. A node that observes and is named there, as a voter or a learner, becomes one; a voter that is
named no more observes. Between the two nothing is taken part in for a moment, as if the node had been
restarted; the state machine stays, and what it has already is passed over.

A voter that was removed while it was away is sent nothing. It learns from the other nodes of the cluster
which configuration is committed (`ChangingMember.hear`).
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, assert_never

from envelope.errors import DiskFull
from envelope.types import LogIndex, NodeId
from metadata.node.members.observing_member import ObserverMember
from metadata.node.members.parts import MemberParts
from metadata.node.members.port import MetadataMember
from metadata.node.members.voting_member import VotingMember
from metadata.node.storage.port import Storage
from metadata.node.voter.voter import CommittedMembers
from metadata.raft.configuration import QuorumState
from metadata.raft.events import ChangeMembers
from metadata.raft.messages.node_messages import NodeMessage

_log = logging.getLogger(__name__)

_NOTHING: Final = LogIndex(0)
_FULL_DISK_SECONDS: Final = 5.0
"""So long a node goes on observing before it tries again to make room for a vote."""


@dataclass(frozen=True, slots=True)
class AsVoter:
    """A voter, or a learner, goes on with its storage."""

    name: NodeId
    """Of the member."""
    founders: frozenset[NodeId]
    """The members with which the group began, this one among them; none: it has joined, or is to join."""


@dataclass(frozen=True, slots=True)
class AsObserver:
    """A node without a vote keeps up with the group."""

    voters: frozenset[NodeId]
    """Nodes that have one, until the log names others."""
    as_of: LogIndex = _NOTHING
    """The index of the metadata log at which other nodes have named them."""


class ChangingMember:
    """See the module; made on the event loop it runs on.

    Attributes:
        server: lets other nodes in, for the purposes that are served.
        open_storage: see `MemberParts`.
    """

    def __init__(
        self, parts: MemberParts, begin: AsVoter | AsObserver, storage: Storage | None = None
    ) -> None:
        """Begin as one of the two; `run` connects it.

        Args:
            parts: of this node.
            begin: which of the two.
            storage: of a voter; belongs to it from now on.
        """
        self.server = parts.server
        self.open_storage = parts.open_storage
        self._parts = parts
        self._member = self._made(begin, storage)
        self._heard = CommittedMembers(_NOTHING, None)
        """The newest members that other nodes have named: those of the state machine may be older."""
        self._is_full = False
        """The disk had no room for a vote a moment ago."""
        self._due: asyncio.Future[AsVoter | AsObserver] = asyncio.get_running_loop().create_future()
        parts.addresses.on_change = self._follow

    def _made(self, part: AsVoter | AsObserver, storage: Storage | None) -> MetadataMember:
        match part:
            case AsVoter(name, founders):
                assert storage is not None, f"{name} has no storage"
                return VotingMember(self._parts, name, founders, storage)
            case AsObserver(voters, as_of):
                return ObserverMember(self._parts, voters, as_of)
            case _:
                assert_never(part)

    def _follow(self) -> None:
        self._member.follow()

    @property
    def part(self) -> MetadataMember:
        """The voter or the observer that it is now."""
        return self._member

    @property
    def told(self) -> CommittedMembers:
        """The members of the group, as far as this node has applied its log."""
        return self._parts.machine.members

    @property
    def is_voter(self) -> bool:
        """Whether this node takes part as a voter, or as one that learns to be one."""
        return isinstance(self._member, VotingMember)

    @property
    def is_alone(self) -> bool:
        """Whether this is the only voter, and so no other can lead now."""
        return self._member.voters == {self._parts.identity.node_id}

    async def run(self, listening: socket.socket | None) -> None:
        """Take part until cancelled.

        Args:
            listening: bound to this node's address; None if it opens no port, so that nobody can join it.

        Raises:
            ExceptionGroup: the error of the disk, or of ours, after which the member is silent.
        """
        async with contextlib.AsyncExitStack() as stack:
            if listening is not None:
                await stack.enter_async_context(self.server.listening(listening))
            while True:
                self._look()
                due = await self._run_until_due()
                storage = None
                if isinstance(due, AsVoter):
                    try:
                        storage = await opened(self.open_storage, due.name)
                    except DiskFull as error:
                        _log.warning("no room for a vote: %s", error.description)
                        due = self._observe_for_now()
                _log.info("taking part as %s", due)
                self._due = asyncio.get_running_loop().create_future()
                self._member = self._made(due, storage)

    def _observe_for_now(self) -> AsObserver:
        def look_again() -> None:
            self._is_full = False
            self._look()

        self._is_full = True
        asyncio.get_running_loop().call_later(_FULL_DISK_SECONDS, look_again)
        return AsObserver(self._member.voters)

    async def _run_until_due(self) -> AsVoter | AsObserver:
        try:
            async with asyncio.TaskGroup() as tasks:
                running = tasks.create_task(self._member.run())
                due = await self._due
                running.cancel()
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return due

    def forward(self, payloads: tuple[bytes, ...]) -> None:
        """See `MetadataMember.forward`."""
        self._member.forward(payloads)

    def attend(self, listener: Callable[[NodeMessage], None]) -> None:
        """Call ``listener`` with every message of a node to this one, for as long as the member runs."""
        self._parts.attendants.append(listener)

    def send(self, message: NodeMessage) -> None:
        """See `MetadataMember.send`."""
        self._member.send(message)

    def membership(self) -> QuorumState | None:
        """See `MetadataMember.membership`."""
        return self._member.membership()

    def change_members(self, change: ChangeMembers) -> None:
        """See `MetadataMember.change_members`."""
        self._member.change_members(change)

    # --- which part -------------------------------------------------------------------------------

    def members_changed(self) -> None:
        """Handle that the state machine has other members: this node may be one now, or none any more."""
        self._look()
        self._member.follow()

    def hear(self, told: CommittedMembers, voters: Collection[NodeId]) -> None:
        """Handle what another node says of the members: it may know more than this one.

        Args:
            told: by its state machine.
            voters: the nodes of those that vote.
        """
        if told.index > self._heard.index:
            self._heard = told
        configuration = told.configuration
        # Who knows a leader is told by that one.
        has_left = configuration is not None and self._member.has_left(told.index, configuration)
        if has_left and self._member.leader is None:
            self._go_on_as(AsObserver(frozenset(voters), told.index))
        else:
            self._member.be_told(told, voters)

    def _look(self) -> None:
        members, heard = self._parts.machine.members, self._heard
        if members.configuration is None:
            return
        name = self._parts.disk_name
        if self._member.has_left(members.index, members.configuration):
            self._go_on_as(AsObserver(frozenset()))
        elif isinstance(self._member, ObserverMember) and name in members.configuration.members:
            is_still_so = heard.index <= members.index or (
                heard.configuration is not None and name in heard.configuration.members
            )
            if is_still_so and not self._is_full:
                self._go_on_as(AsVoter(name, frozenset()))

    def _go_on_as(self, part: AsVoter | AsObserver) -> None:
        if not self._due.done():
            self._due.set_result(part)


async def opened(open_storage: Callable[[NodeId], Storage], name: NodeId) -> Storage:
    """Open a storage on a thread; cancelled, wait until that is over, and close it again."""
    opening = asyncio.get_running_loop().run_in_executor(None, open_storage, name)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).close()
        raise
