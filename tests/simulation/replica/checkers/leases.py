"""While a node's lease is valid by its own clock, nobody takes its streams because it is thought dead."""

from collections.abc import Callable

from envelope.types import LeaderEpoch, NodeId, StreamName
from metadata.catalog.tables import Stream
from tests.simulation.violation import Violation


class Leases:
    """Knows who was reported or has announced to stop: they may be replaced while they live."""

    def __init__(self, tolerance: int) -> None:
        """Allow ``tolerance`` ns, as clocks run at different rates."""
        self._tolerance = tolerance
        self._reported: set[tuple[StreamName, LeaderEpoch]] = set()
        self._stopping: set[NodeId] = set()
        self.left: Callable[[NodeId], int] = lambda node: 0
        """How long the lease of a node's process still lasts, in ns of its own clock."""

    def reported(self, stream: StreamName, leader_epoch: LeaderEpoch) -> None:
        """A follower reports its leader as silent."""
        self._reported.add((stream, leader_epoch))

    def stopping(self, node: NodeId) -> None:
        """A node announces that it stops."""
        self._stopping.add(node)

    def replaced(self, stream: Stream) -> None:
        """The controller wants another leader for the stream than the catalogue has."""
        leader = stream.leader
        if leader is None or leader in self._stopping or (stream.name, stream.leader_epoch) in self._reported:
            return
        left = self.left(leader)
        if left > self._tolerance:
            raise Violation(f"{leader} is replaced as dead; its lease lasts another {left / 1e6:.3f} ms")
