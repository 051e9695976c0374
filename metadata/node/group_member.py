"""One member of the metadata group as it runs: a voter, and its connections to the others."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping

from envelope.errors import NotLeader, Overloaded
from envelope.types import NodeId
from metadata.limits import SNAPSHOT_LOG_BYTES_MIN
from metadata.node.peers import Address, PeerIdentity, PeerNetwork
from metadata.node.storage import Storage
from metadata.node.voter import StateMachine, Voter
from metadata.node.wake_up import now
from metadata.raft.machine import Raft
from metadata.raft.node_messages import NodeMessage
from metadata.raft.settings import RaftSettings
from metadata.raft.wire import Forwarded, Sent

_log = logging.getLogger(__name__)


class GroupMember:
    """Made on the event loop it runs on.

    Attributes:
        voter: what may be asked of the leader, and of this member.
        network: the connections.
        voters: all members.
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
            voters: all members, the same for all of them and for ever.
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
        raft = Raft(identity.node_id, frozenset(voters), settings, storage.load(), now())
        self.network = PeerNetwork(identity, others)
        self.voter = Voter(raft, storage, machine, self.network.send, sorted(others), snapshot_log_bytes_min)

    async def run(self, listening: socket.socket | None) -> None:
        """Take part until cancelled; the storage is closed when this returns.

        Args:
            listening: bound to this member's address; None if there are no others, and so no connections.

        Raises:
            ExceptionGroup: the error of the disk, or of ours, after which the voter is silent.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                if listening is not None:
                    tasks.create_task(self.network.run(listening, self))
                tasks.create_task(self._fail_with_voter())
        finally:
            await self.voter.stop()

    def forward(self, payloads: tuple[bytes, ...]) -> None:
        """Have payloads proposed by whoever leads, here or elsewhere; they may be lost on the way."""
        leader = self.voter.leader
        if leader == self._node_id:
            self._propose(payloads)
        elif leader is not None:
            self.network.send(Forwarded(self._node_id, leader, payloads))

    def _propose(self, payloads: tuple[bytes, ...]) -> None:
        """Propose what is then lost if this member does not lead, or cannot take more."""
        with contextlib.suppress(NotLeader, Overloaded):
            self.voter.propose(payloads)

    def attend(self, told: Callable[[NodeMessage], None]) -> None:
        """Have ``told`` called with everything that nodes say to this one, for as long as the member runs."""
        self._attendants.append(told)

    def tell(self, message: NodeMessage) -> None:
        """Say something to a node; it may be lost on the way, to this node itself it is handed over."""
        if message.target == self._node_id:
            self._told(message)
        else:
            self.network.send(message)

    def _told(self, message: NodeMessage) -> None:
        for told in self._attendants:
            told(message)

    # --- the network's Listener -------------------------------------------------------------------

    def received(self, message: Sent) -> None:
        """See `Listener.received`."""
        if isinstance(message, Forwarded):
            if all(map(self._machine.can_apply, message.payloads)):
                self._propose(message.payloads)  # not forwarded again: it might go round and round
            else:
                _log.error("peer=%s forwards what this version cannot apply", message.source)
        elif isinstance(message, NodeMessage):
            self._told(message)
        else:
            self.voter.received(message)

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """See `Listener.disconnected`."""
        self.voter.disconnected(peer, refused=refused)

    async def _fail_with_voter(self) -> None:
        await self.voter.failure
