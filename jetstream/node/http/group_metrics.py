"""The numbers of consumer groups: the node that coordinates a group has them.

It knows where a stream ends if its own replica of it is in sync, and finds the time of a record in what is in
memory of that replica's index. For other streams Prometheus subtracts: see docs/metrics.md.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from consumer_groups.cursors import records_behind
from envelope.errors import JetstreamError
from envelope.types import Offset, StreamName
from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_node
from jetstream.node.replicas.replica import StreamReplica


def _committed(sources: Sources) -> Iterator[Sample | None]:
    for group, stream, cursor in sources.groups.positions():
        yield None if cursor is None else ((group, stream), cursor.offset)


def _in_sync(sources: Sources, name: StreamName) -> StreamReplica | None:
    """Return this node's replica of a stream if the end of what is committed is known here."""
    row = sources.streams.catalog.stream(name)
    if row is not None and sources.node in row.isr_nodes:
        with suppress(JetstreamError):  # it is offline here
            return sources.streams.stream(name)
    return None


class _Unread(NamedTuple):
    """The records of a stream that a group has still to read."""

    labels: tuple[str, str]
    replica: StreamReplica
    first: Offset
    """Where it reads on."""
    records: int


def _unread(sources: Sources) -> Iterator[_Unread | None]:
    """Yield what each group has still to read of each stream; None: nobody here knows where it ends."""
    for group, stream, cursor in sources.groups.positions():
        replica = _in_sync(sources, stream)
        if replica is None or not replica.is_open:
            yield None
            continue
        first = start = replica.readable.log_start_offset
        if cursor is not None and cursor.incarnation in (None, replica.incarnation):
            first = Offset(max(start, cursor.offset))
        yield _Unread((group, stream), replica, first, records_behind(first, start, replica.high_watermark))


def _lag_records(sources: Sources) -> Iterator[Sample | None]:
    for unread in _unread(sources):
        yield None if unread is None else (unread.labels, unread.records)


def _lag_seconds(sources: Sources) -> Iterator[Sample | None]:
    for unread in _unread(sources):
        if unread is None or not unread.records:
            yield None if unread is None else (unread.labels, 0)
            continue
        newest = unread.replica.log.reader.newest_time_at(unread.first)
        yield unread.labels, max(0, sources.removal_clock.clock.wall() - newest) / 1e6


_LABELS: Final = ("group", "stream")

GROUP_METRICS: Final = (
    of_node(
        "jetstream_groups",
        "Consumer groups that this node coordinates.",
        lambda sources: sources.groups.census.groups,
    ),
    of_node(
        "jetstream_group_members",
        "Members of the consumer groups that this node coordinates.",
        lambda sources: sources.groups.census.members,
    ),
    of_node(
        "jetstream_group_cursors",
        "Cursors of the consumer groups that this node coordinates.",
        lambda sources: sources.groups.census.cursors,
    ),
    Definition(
        "jetstream_group_committed_offset",
        "Offset where a consumer group that this node coordinates reads on, by its last commit.",
        _LABELS,
        _committed,
    ),
    Definition(
        "jetstream_group_lag_records",
        "Committed records that a consumer group that this node coordinates has still to read, by its last "
        "commit, in a stream whose replica here is in sync; all of them, if it has committed nothing.",
        _LABELS,
        _lag_records,
    ),
    Definition(
        "jetstream_group_lag_seconds",
        "Age of the first of these records, 0 if there is none; it may be older, where only the newest time "
        "of its segment is in memory.",
        _LABELS,
        _lag_seconds,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
