"""A node's part in the metadata group: a `VotingMember` with a vote, an `ObserverMember` without one."""

from collections.abc import Collection
from typing import Protocol

from envelope.errors import DiskFull
from envelope.types import LogIndex, NodeId, Term
from metadata.node.voter.voter import CommittedMembers
from metadata.raft.configuration import Configuration, QuorumState
from metadata.raft.events import ChangeMembers
from metadata.raft.messages.node_messages import NodeMessage


class MetadataMember(Protocol):
    """Used on the event loop's thread; members are told by the ids of their nodes."""

    @property
    def voters(self) -> frozenset[NodeId]:
        """All nodes with a vote, as far as is known here."""

    @property
    def leader(self) -> NodeId | None:
        """The leader of the metadata log, as far as is known here."""

    @property
    def term(self) -> Term:
        """The newest term that is known here; with the leader it tells one reign from another."""

    @property
    def disk_full(self) -> DiskFull | None:
        """Why a write waits, while one waits for space."""

    @property
    def problem(self) -> str | None:
        """Why it is out of touch with the group, for people; None while it is not, or does not know."""

    async def run(self) -> None:
        """Take part until cancelled.

        Raises:
            ExceptionGroup: the error of the disk, or of ours, after which the member is silent.
        """

    async def stop(self) -> None:
        """Finish the writes and close the storage, as `run` does; for a member that may never have run."""

    def forward(self, payloads: tuple[bytes, ...]) -> None:
        """Send payloads to the leader, here or elsewhere, to propose; they may be lost on the way."""

    def send(self, message: NodeMessage) -> None:
        """Send a message to a node; it may be lost on the way, to this node itself it is handed over."""

    def membership(self) -> QuorumState | None:
        """Return the members of the group, and when each was heard; None if this member does not lead."""

    def change_members(self, change: ChangeMembers) -> None:
        """Begin a change of the group's members; it may be refused; else it shows in `membership`."""

    async def read(self) -> LogIndex:
        """Return the index that must be applied to see everything that was committed before this call.

        Raises:
            NotLeader: this member does not lead; ask the leader.
        """

    def follow(self) -> None:
        """Look again at who the others are, and where: what was known has changed."""

    def be_told(self, told: CommittedMembers, voters: Collection[NodeId]) -> None:
        """Speak with those whom another node has named too, until the log here names others.

        Args:
            told: of its state machine; index 0 where that has named no members yet.
            voters: the nodes that have a vote there.
        """

    def has_left(self, index: LogIndex, configuration: Configuration) -> bool:
        """Return whether it is a voter no more by a configuration that is committed, known at ``index``."""
