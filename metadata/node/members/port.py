"""A node's part of the metadata quorum: a `VotingMember` with a vote, an `ObserverMember` without one."""

import socket
from collections.abc import Callable
from typing import Protocol

from envelope.errors import DiskFull
from envelope.types import LogIndex, NodeId, Term
from metadata.node.peers.listening import PeerServer
from metadata.raft.messages.node_messages import NodeMessage


class MetadataMember(Protocol):
    """Used on the event loop's thread."""

    @property
    def server(self) -> PeerServer:
        """Server that lets other nodes in, for the purposes that are served."""

    @property
    def voters(self) -> frozenset[NodeId]:
        """All nodes with a vote."""

    @property
    def is_alone(self) -> bool:
        """Whether this is the only voter, and so no other can ever lead."""

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

    async def run(self, listening: socket.socket | None) -> None:
        """Take part until cancelled.

        Args:
            listening: bound to this member's address; None if there are no others, and so no connections.

        Raises:
            ExceptionGroup: the error of the disk, or of ours, after which the member is silent.
        """

    async def stop(self) -> None:
        """Finish the writes and close the storage, as `run` does; for a member that may never have run."""

    def forward(self, payloads: tuple[bytes, ...]) -> None:
        """Send payloads to the leader, here or elsewhere, to propose; they may be lost on the way."""

    def attend(self, listener: Callable[[NodeMessage], None]) -> None:
        """Call ``listener`` with every message of a node to this one, for as long as the member runs."""

    def send(self, message: NodeMessage) -> None:
        """Send a message to a node; it may be lost on the way, to this node itself it is handed over."""

    async def read(self) -> LogIndex:
        """Return the index that must be applied to see everything that was committed before this call.

        Raises:
            NotLeader: this member does not lead; ask the leader.
        """
