"""The streams that each node leads, so that an event of one node looks at no other's streams."""

from collections.abc import Iterable

from envelope.types import NodeId, StreamName
from metadata.catalog.tables import Stream


class LedStreams:
    """An index of the catalogue's streams by their leader."""

    def __init__(self, streams: Iterable[Stream]) -> None:
        """Begin with all streams of a catalogue."""
        self._leaders: dict[StreamName, NodeId] = {}
        self._led: dict[NodeId, set[StreamName]] = {}
        for stream in streams:
            self.put(stream)

    def put(self, stream: Stream) -> None:
        """Record a row that is new, or has changed."""
        if self._leaders.get(stream.name) != stream.leader:
            self.remove(stream.name)
            if stream.leader is not None:
                self._leaders[stream.name] = stream.leader
                self._led.setdefault(stream.leader, set()).add(stream.name)

    def remove(self, name: StreamName) -> None:
        """Forget a stream, if it is known."""
        leader = self._leaders.pop(name, None)
        if leader is not None:
            self._led[leader].remove(name)

    def of(self, node: NodeId) -> frozenset[StreamName]:
        """Return the streams that the node leads."""
        return frozenset(self._led.get(node, ()))
