"""The things that the parts which a node takes in the metadata group, one after the other, have in common."""

from collections.abc import Callable
from dataclasses import dataclass, field

from envelope.types import NodeId
from metadata.limits import SNAPSHOT_LOG_BYTES_MIN
from metadata.node.peers.addresses import PeerAddresses
from metadata.node.peers.dialling import PeerIdentity
from metadata.node.peers.listening import PeerServer
from metadata.node.storage.port import Storage
from metadata.node.voter.voter import StateMachine
from metadata.raft.messages.node_messages import NodeMessage
from metadata.raft.settings import RaftSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberParts:
    """See the module.

    Attributes:
        identity: of the node.
        disk_name: of the member that the node is, if it becomes one.
        server: lets other nodes in.
        addresses: where they are.
        machine: the state machine.
        settings: times and limits.
        open_storage: returns the storage of the member of that name, whose disk this is; it blocks.
        snapshot_log_bytes_min: bytes of log below which no snapshot is taken.
        attendants: get the messages of nodes to this one.
    """

    identity: PeerIdentity
    disk_name: NodeId
    server: PeerServer
    addresses: PeerAddresses
    machine: StateMachine
    settings: RaftSettings
    open_storage: Callable[[NodeId], Storage]
    snapshot_log_bytes_min: int = SNAPSHOT_LOG_BYTES_MIN
    attendants: list[Callable[[NodeMessage], None]] = field(default_factory=list)

    def deliver(self, message: NodeMessage) -> None:
        """Hand over a message to this node."""
        for attendant in self.attendants:
            attendant(message)
