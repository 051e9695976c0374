"""NATS as publishers and leaders see it: at most once, in order per publisher, to whoever is subscribed."""

from collections.abc import Callable

from envelope.types import NodeId, StreamName
from tests.simulation.network import Network
from tests.simulation.replica.messages import BusMessage, Publish


class Bus:
    """Carries messages to all subscribers, and answers back."""

    def __init__(self, network: Network[BusMessage]) -> None:
        self.network = network
        self._names: list[str] = []
        self._subscribers: dict[StreamName, list[NodeId]] = {}
        self._away: set[str] = set()
        """Who has lost the connection, and is not back yet."""

    def connect(self, name: str, receive: Callable[[BusMessage], None]) -> None:
        """Deliver what is for ``name`` to ``receive``."""
        self._names.append(name)
        self.network.connect(name, receive)

    def subscribe(self, node: NodeId, stream: StreamName) -> None:
        """Let ``node`` receive what is published to ``stream`` from now on."""
        subscribers = self._subscribers.setdefault(stream, [])
        if node not in subscribers:
            subscribers.append(node)

    def unsubscribe(self, node: NodeId, stream: StreamName) -> None:
        """End a subscription, if there is one; what is on its way still arrives."""
        subscribers = self._subscribers.get(stream, [])
        if node in subscribers:
            subscribers.remove(node)

    def publish(self, message: Publish) -> None:
        """Send to whoever is subscribed now."""
        for node in self._subscribers.get(message.stream, ()):
            self._send(message.publisher, node, message)

    def answer(self, node: NodeId, message: BusMessage, publisher: str) -> None:
        """Send to the one publisher."""
        self._send(node, publisher, message)

    def restart(self) -> list[str]:
        """Lose all connections and what is under way; return who has to come back."""
        self.network.break_all()
        self._away.update(self._names)
        return list(self._names)

    def come_back(self, name: str) -> None:
        """Connect and subscribe again."""
        self._away.discard(name)

    def _send(self, source: str, target: str, message: BusMessage) -> None:
        if source not in self._away and target not in self._away:
            self.network.send((source, target), message)
