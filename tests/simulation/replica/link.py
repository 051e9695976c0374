"""What joins one life of a node's process to the metadata group."""

from typing import Protocol

from envelope.types import NodeId
from jetstream.replica.leader_events import ProposeIsr
from metadata.catalog.commands import ChangeIsr
from metadata.catalog.tables import Stream
from tests.simulation.replica.messages import ToMetadata


class Link(Protocol):
    """Tells the process of its registration, its lease and of rows, and the group what the process says."""

    def begin(self) -> None:
        """Register this start."""

    def receive(self, message: ToMetadata) -> None:
        """Take in what the metadata group says by messages."""

    def propose(self, proposal: ProposeIsr, command: ChangeIsr) -> None:
        """Have the group decide on an ISR."""

    def begin_stream(self, row: Stream) -> None:
        """Have the group know that a new stream's leader has a log."""

    def silent(self, row: Stream) -> None:
        """Report that the leader of a stream is not heard."""

    def heard(self, peer: NodeId) -> None:
        """Take in that another node is heard."""

    def stop(self) -> None:
        """Say that the process is about to stop."""

    def tick(self) -> None:
        """Say what is to be said again and again."""
