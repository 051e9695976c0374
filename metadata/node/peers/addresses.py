"""Where the nodes of the cluster are dialled, as far as this one has heard."""

from collections.abc import Callable, Mapping

from envelope.types import NodeId
from metadata.node.peers.dialling import Address


class PeerAddresses:
    """Addresses by node; what was heard last counts, but for those that the settings say.

    Attributes:
        on_change: called when a node has another address than before.
    """

    def __init__(self, said: Mapping[NodeId, Address]) -> None:
        """Begin with what the settings say, which nothing that is heard replaces."""
        self.on_change: Callable[[], None] = lambda: None
        self._said = dict(said)
        self._heard: dict[NodeId, Address] = {}

    def hear(self, node: NodeId, address: Address) -> None:
        """Record where ``node`` is."""
        if node not in self._said and self._heard.get(node) != address:
            self._heard[node] = address
            self.on_change()

    def hear_of(self, node: NodeId, address: Address) -> None:
        """Record where others say that ``node`` is, unless that is known: they may have heard it long ago."""
        if self.of(node) is None:
            self.hear(node, address)

    def of(self, node: NodeId) -> Address | None:
        """Return where ``node`` is, None if nobody has said so."""
        return self._said.get(node) or self._heard.get(node)
