"""NATS as publishers and leaders see it: at most once, in order per publisher, to whoever is subscribed."""

from collections.abc import Callable

from envelope.types import NodeId, StreamName
from tests.simulation.network import Network
from tests.simulation.replica.messages import BusMessage, Publish


class Bus:
    """Carries messages to all subscribers, and answers back."""

    def __init__(self, network: Network[BusMessage]) -> None:
        self.network = network
        self._subscribers: dict[StreamName, list[NodeId]] = {}

    def connect(self, name: str, receive: Callable[[BusMessage], None]) -> None:
        """Deliver what is for ``name`` to ``receive``."""
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
            self.network.send((message.publisher, node), message)

    def answer(self, node: NodeId, message: BusMessage, publisher: str) -> None:
        """Send to the one publisher."""
        self.network.send((node, publisher), message)
