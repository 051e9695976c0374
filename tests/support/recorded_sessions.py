"""What a node's streams say to other nodes, kept for a test: nobody hears it."""

from dataclasses import dataclass, field

from envelope.types import Buffer, Incarnation, NodeId, StreamName
from jetstream.log.reader import FileRange
from jetstream.replica.wire import Answer, FetchMessage, Question, RepairAnswer


@dataclass
class RecordedSessions:
    """The `PeerSessions` of a node to which every other one is connected."""

    answers: list[tuple[NodeId, Answer | RepairAnswer, Buffer | FileRange | None]] = field(
        default_factory=list
    )
    fetches: list[FetchMessage] = field(default_factory=list)

    def fetch(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Question) -> bool:
        """See `PeerSessions.fetch`."""
        del peer, name, incarnation
        assert isinstance(message, FetchMessage), "nobody asks for a repair here"
        self.fetches.append(message)
        return True

    def answer(
        self,
        peer: NodeId,
        name: StreamName,
        incarnation: Incarnation,
        message: Answer | RepairAnswer,
        body: Buffer | FileRange | None = None,
    ) -> None:
        """See `PeerSessions.answer`."""
        del name, incarnation
        self.answers.append((peer, message, body))

    def is_connected(self, peer: NodeId) -> bool:
        """See `PeerSessions.is_connected`."""
        del peer
        return True

    def is_lost(self, peer: NodeId) -> bool:
        """See `PeerSessions.is_lost`."""
        del peer
        return False
