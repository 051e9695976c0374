"""What the socket server asks of the node's streams."""

from collections.abc import Callable, Sequence
from typing import Protocol

from envelope.types import LeaderEpoch, Offset, StreamName
from jetstream.log.log import Log
from jetstream.protocol.responses import NodeMetadata


class ReadableStream(Protocol):
    """A stream that this node serves."""

    @property
    def name(self) -> StreamName:
        """Its name."""

    @property
    def incarnation(self) -> str:
        """Which life of the name it is."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch it is led in."""

    @property
    def log(self) -> Log:
        """Its log; read from on the loop's thread and on the executor's."""

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not committed."""

    def subscribe(self, callback: Callable[[Offset], None]) -> Callable[[], None]:
        """Call ``callback`` on the loop's thread with every new high watermark; returns the way to stop."""


class StreamDirectory(Protocol):
    """All that can be read on this node."""

    def stream(self, name: str) -> ReadableStream | None:
        """Return the stream, or None if there is none; may raise a typed error, such as StreamOffline."""

    def names(self) -> Sequence[str]:
        """Return the names of all streams, ascending."""

    def nodes(self) -> Sequence[NodeMetadata]:
        """Return all nodes of the cluster."""
