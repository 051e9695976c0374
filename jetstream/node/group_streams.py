"""What consumer groups need to know of streams: their partitions, and which life of its name each is."""

from collections.abc import Iterator

from consumer_groups.assignment.partitions import Holder, StreamPartitions
from envelope.types import StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.events import Events, ReplicasReassigned, StreamCreated, StreamDeleted, StreamUpdated
from metadata.catalog.tables import Stream


class GroupStreams:
    """As the catalogue says now."""

    def __init__(self, catalog: Catalog) -> None:
        """Look into ``catalog``."""
        self._catalog = catalog

    def partitions(self, name: StreamName) -> StreamPartitions | None:
        """Return the partitions of a stream; one that is not partitioned has one. None: there is none."""
        rows = self._rows(name)
        if not rows:
            return None
        return StreamPartitions(name, len(rows), tuple(self._holders(row) for row in rows))

    def life(self, name: StreamName) -> str | None:
        """Return which life of its name a stream is, whatever partitions are added; None: there is none."""
        rows = self._rows(name)
        return rows[0].incarnation if rows else None

    def is_partitioned(self, name: StreamName) -> bool:
        """Tell whether partition 3 of ``name`` is the stream ``name/3``."""
        return self._catalog.partitions_of(name) > 0

    def _rows(self, name: StreamName) -> tuple[Stream, ...]:
        count = self._catalog.partitions_of(name)
        if count:
            return self._catalog.partition_rows(name)[:count]
        row = self._catalog.stream(name)
        return () if row is None else (row,)

    def _holders(self, row: Stream) -> tuple[Holder, ...]:
        nodes = (self._catalog.node(node_id) for node_id in row.holders)
        return tuple(Holder(node.node_id, node.rack) for node in nodes if node is not None)


def names_in(events: Events) -> Iterator[StreamName]:
    """Yield the streams whose partitions, or the places of these, may be others after ``events``."""
    for event in events:
        if isinstance(event, StreamCreated | StreamDeleted | StreamUpdated | ReplicasReassigned):
            yield event.stream.name
            if event.stream.config.partition_of is not None:
                yield StreamName(event.stream.config.partition_of)
