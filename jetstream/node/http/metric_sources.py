"""Where a node's numbers are, and how a metric reads them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from jetstream.node.disk.appends import DiskCounters
from jetstream.node.groups.cursor_store import CursorStore
from jetstream.node.groups.shards import GroupService
from jetstream.node.maintenance.compactor import CompactionCounters
from jetstream.node.maintenance.rewriter import RewriteCounters
from jetstream.node.maintenance.scrubber import ScrubCounters
from jetstream.node.nats.audit_trail import AuditTrail
from jetstream.node.nats.link import NatsLink
from jetstream.node.readers.reader_connection import SocketCounters
from jetstream.node.readers.server import SocketServer
from jetstream.node.replicas.publish_latency import PublishLatency
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.histogram import Histogram
from jetstream.node.runtime.removal_clock import RemovalClock
from jetstream.node.streams.directory import NodeStreams
from jetstream.node.tiers.segment_cache import Tier
from metadata.node.admission.door import Door
from metadata.node.catalogue.group import MetadataQuorum


class HttpNumbers(Protocol):
    """The numbers of the HTTP port."""

    @property
    def connections(self) -> int:
        """Peers that are connected."""

    @property
    def readers(self) -> int:
        """Responses with records that are under way."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory that wait for peers to take them."""

    @property
    def counters(self) -> SocketCounters:
        """The counts since it started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a node's numbers are."""

    node: str
    streams: NodeStreams
    removal_clock: RemovalClock
    links: tuple[NatsLink, ...]
    disk: DiskCounters
    publish_latency: PublishLatency
    server: SocketServer
    http: HttpNumbers
    compaction: CompactionCounters
    rewrite: RewriteCounters
    scrub: ScrubCounters
    tier: Tier
    cursors: CursorStore
    groups: GroupService
    metadata: MetadataQuorum
    doors: tuple[Door, ...]
    audit: AuditTrail
    lines_dropped: Callable[[], int]
    """Of the log."""


Sample = tuple[tuple[str, ...], float | Histogram]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric; ``read`` yields (label values, value), and may have to wait between two of them.

    It yields None where it had to look at something that has no sample: others get their turn then as well.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Sources], Iterable[Sample | None]]
    is_histogram: bool = False
    """Whether its values are histograms; otherwise they are numbers."""

    @property
    def kind(self) -> Literal["counter", "gauge", "histogram"]:
        """Prometheus's type, which its convention for names says of numbers."""
        if self.is_histogram:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names under which Prometheus stores it."""
        suffixes = ("_bucket", "_sum", "_count") if self.is_histogram else ("",)
        return tuple(self.name + suffix for suffix in suffixes)


def of_stream(name: str, help_text: str, value: Callable[[StreamReplica], float]) -> Definition:
    """Return a metric with the ``value`` of every stream that is open here."""

    def read(sources: Sources) -> Iterator[Sample]:
        for stream in sources.streams:
            yield (stream.name,), value(stream)

    return Definition(name, help_text, ("stream",), read)


def of_link(name: str, help_text: str, value: Callable[[NatsLink], float]) -> Definition:
    """Return a metric with the ``value`` of every connection to NATS."""

    def read(sources: Sources) -> Iterator[Sample]:
        for link in sources.links:
            yield (link.watch.role,), value(link)

    return Definition(name, help_text, ("connection",), read)


def of_node(name: str, help_text: str, value: Callable[[Sources], float]) -> Definition:
    """Return a metric with one ``value`` of the node."""
    return Definition(name, help_text, (), lambda sources: [((), value(sources))])
