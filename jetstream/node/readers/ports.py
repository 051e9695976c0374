"""The ports of the socket server to the node's streams."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from envelope.types import LeaderEpoch, Offset, StreamName
from jetstream.fetch.planner import StreamView
from jetstream.log.log import Log
from jetstream.log.reader import FileRange, LogReader
from jetstream.node.runtime.catch_up_queue import CatchUpQueue
from jetstream.node.tiers.tiered_stream import Readable
from jetstream.protocol.responses import NodeMetadata
from jetstream.tier.tiered_log import SegmentAway
from metadata.catalog.tables import Stream
from metadata.tickets import TicketKey


def whole_of(catalog: "RightsCatalog", name: str) -> str | None:
    """Return the partitioned stream that a stream is a partition of; None: of none, or there is none."""
    row = catalog.stream(StreamName(name))
    return None if row is None else row.config.partition_of


class TierAccess(Protocol):
    """Brings in what of a stream lies in the object store, as the catalogue's newest row says."""

    def search_start(self, txid: int, log: LogReader) -> Offset:
        """Return the offset at which to begin to look for a txid in the stream, whose log this is."""

    def bring_in(self, away: SegmentAway) -> "asyncio.Task[None]":
        """Begin to; done when it was tried, and can be asked for again.

        Raises:
            TierUnavailable: the store did not give it a moment ago.
        """

    def is_moving(self, away: SegmentAway) -> bool:
        """Return whether it is on its way here, and moves."""


class ReadableStream(Protocol):
    """A stream that this node has a replica of."""

    @property
    def name(self) -> StreamName:
        """Its name."""

    @property
    def incarnation(self) -> str:
        """Which life of the name it is."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The newest reign that is known here."""

    @property
    def leads(self) -> bool:
        """Whether this node leads it now, by its lease."""

    @property
    def has_committed_own_epoch(self) -> bool:
        """Whether nothing at or above the high watermark has been acked by an earlier leader."""

    @property
    def log(self) -> Log:
        """Its log; read from on the loop's thread and on the executor's."""

    @property
    def readable(self) -> Readable:
        """The records that can be read here, in the log or the object store; used as the log is."""

    @property
    def tiered(self) -> TierAccess:
        """Brings in what lies in the object store."""

    @property
    def high_watermark(self) -> Offset:
        """First offset that is not known here to be committed."""

    def view(self) -> StreamView[FileRange]:
        """Return the stream as the planner looks at it, now."""

    def confirm_leadership(self) -> asyncio.Future[None]:
        """Find out whether this node led the stream when this was called; done when that is known.

        Records acked before are known here then, as nobody else can have acked them. The future's error is
        `StreamOffline`: it leads no more, or nobody can say whether it does.
        """

    def subscribe(self, callback: Callable[[Offset], None]) -> Callable[[], None]:
        """Call ``callback`` on the loop's thread with every new high watermark; returns the way to stop."""


class RightsCatalog(Protocol):
    """The part of the catalogue that tickets are compared with."""

    @property
    def ticket_keys(self) -> tuple[TicketKey, ...]:
        """The keys that prove tickets now."""

    def stream(self, name: StreamName) -> Stream | None:
        """Return the row of a stream; None: there is none."""


class StreamDirectory(Protocol):
    """All streams, and those that can be read on this node."""

    @property
    def catalog(self) -> RightsCatalog:
        """Which tickets are good, and for what."""

    @property
    def catch_up_queue(self) -> CatchUpQueue:
        """Of readers that catch up: short, and waited for, while something is stored."""

    def stream(self, name: str) -> ReadableStream | None:
        """Return the stream, or None if there is none; may raise a typed error.

        Raises:
            NotReplica: other nodes have it.
            StreamOffline: its log is not open.
        """

    def row(self, name: str) -> Stream | None:
        """Return the catalogue's row of a stream, or None if there is none; may raise a typed error."""

    def names(self) -> Sequence[str]:
        """Return the names of all streams, ascending."""

    def nodes(self) -> Sequence[NodeMetadata]:
        """Return all nodes of the cluster."""
