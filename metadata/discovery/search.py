"""The machine by which a new node finds its cluster, or begins one where it is told to and there is none.

Theory of operation. The node asks all nodes who listen, again and again, and belongs to the cluster of one
that names voters, once others have had the time to contradict it. Only a node that is told to begin a cluster
does so, after nobody has answered several questions. Two that are told so at once, with one name, hear each
other and both stop: an operator has to choose.
"""

from dataclasses import dataclass
from typing import Final, NoReturn

from envelope.errors import InvalidConfig
from metadata.discovery.notices import Notice

_MS: Final = 1_000_000
ASK_INTERVAL_NS: Final = 200 * _MS
"""How often a node asks."""
QUESTIONS: Final = 5
"""So many in a row that NATS has taken remain unanswered before a node begins a cluster."""
MORE_QUESTIONS: Final = 2
"""So many are asked once a node has answered: another one that this node contradicts may be slower."""


@dataclass(slots=True)
class Search:
    """The search of one node; see the module."""

    own: Notice
    """What it asks with: without voters, and with the id of its cluster if it belonged to one before."""
    found: Notice | None = None
    """Of a node of the cluster; None: none has answered yet."""
    is_first: bool = False
    """Nobody has answered, and this node is to begin the cluster."""
    _asked: int = 0

    def hear(self, notice: Notice) -> None:
        """Handle a notice that has arrived, perhaps of this node itself.

        Raises:
            InvalidConfig: an operator has to look: two nodes are told to begin the cluster, another node has
                this one's id or address, or the directory is of another cluster.
        """
        own, other = self.own.source, notice.source
        if notice.directory == self.own.directory:
            if other != own:
                self._refuse(f"has the same directory as {other}: one is a copy of the other", "data")
            return
        if other.node_id == own.node_id:
            self._refuse(f"is another node too, {other}, with another directory", "node_id")
        if (other.host, other.port) == (own.host, own.port):
            self._refuse(f"is where {other} says that it is", "peers.advertise")
        if None not in (self.own.cluster_id, notice.cluster_id) and notice.cluster_id != self.own.cluster_id:
            self._refuse(
                f"has the directory of cluster {self.own.cluster_id}, and {other} is of cluster "
                f"{notice.cluster_id} under the same name: begin with an empty directory, or choose another "
                "cluster or api_prefix",
                "data",
            )
        if self.own.begins and notice.begins:
            self._refuse(f"is to begin the cluster, and so is {other}: only one may be", "peers.init")
        if notice.voters:
            if self.found is None:
                self._asked = 0
            self.found = notice

    def ask(self) -> Notice | None:
        """Return the question to send now; to be called every `ASK_INTERVAL_NS`.

        None: the search is over. All that is heard until then counts: the first node that answers need not be
        the one that this node contradicts.
        """
        if self.found is not None:
            is_over = self._asked >= MORE_QUESTIONS
        else:
            is_over = self.is_first = self.own.begins and self._asked >= QUESTIONS
        if is_over:
            return None
        self._asked += 1
        return self.own

    def lost(self) -> None:
        """Record that the last question may not have reached anybody: those before it count no more."""
        self._asked = 0

    def _refuse(self, problem: str, field: str) -> NoReturn:
        raise InvalidConfig(f"node {self.own.source.node_id} {problem}", field=field)
