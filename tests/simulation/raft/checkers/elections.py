"""At most one voter leads in a term."""

from envelope.types import NodeId, Term
from metadata.raft.messages.voter_messages import AppendRequest, ElectNow, Heartbeat, Message, SnapshotRequest
from tests.simulation.violation import Violation

_LEADERS_WORDS = (AppendRequest, Heartbeat, SnapshotRequest, ElectNow)


class Elections:
    """Who led in each term, by what anybody reported and by who spoke as a leader."""

    def __init__(self) -> None:
        self._leaders: dict[Term, NodeId] = {}

    def led(self, term: Term, leader: NodeId) -> None:
        """Somebody says, or shows, that ``leader`` leads in ``term``."""
        known = self._leaders.setdefault(term, leader)
        if known != leader:
            raise Violation(f"term {term} has two leaders: {known} and {leader}")

    @property
    def newest(self) -> Term:
        """The highest term that anybody led in."""
        return max(self._leaders, default=Term(0))

    def leads(self, name: NodeId, term: Term) -> bool:
        """Tell whether ``name`` is known as the leader of ``term``."""
        return self._leaders.get(term) == name

    def sent(self, message: Message) -> None:
        """A message leaves; some only a leader may send."""
        if isinstance(message, _LEADERS_WORDS):
            self.led(message.term, message.source)
