"""The numbers of replicas: how many a stream has in sync, and those that lack what they should have.

The catalogue knows how many there are: each node that holds a replica shows that as far as it has heard of
the catalogue. How far each one is behind the leader knows, while it leads.
"""

from collections.abc import Callable, Iterator
from typing import Final

from envelope.types import Offset, StreamName
from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_node
from jetstream.replica.progress import FollowerState
from metadata.catalog.tables import Stream


def _of_held(name: str, help_text: str, value: Callable[[Stream], int]) -> Definition:
    """Return a metric with the ``value`` of every stream of which this node holds a replica."""

    def read(sources: Sources) -> Iterator[Sample]:
        for row in sources.streams.catalog.streams():
            if sources.node in row.holders:
                yield (row.name,), value(row)

    return Definition(name, help_text, ("stream",), read)


def _count_blank(sources: Sources) -> int:
    return sum(sources.node in row.blank for row in sources.streams.catalog.streams())


def _followers(sources: Sources) -> Iterator[tuple[StreamName, Offset, FollowerState]]:
    """Yield the followers of every stream that this node leads, with its log end."""
    for stream in sources.streams:
        if stream.leading is not None:
            _, *followers = stream.leading.driver.replica_states()
            for follower in followers:
                yield stream.name, stream.leading.context.log.log_end_offset, follower


def _lag_records(sources: Sources) -> Iterator[Sample]:
    for stream, log_end, follower in _followers(sources):
        if follower.log_end is not None:
            yield (stream, follower.node), max(0, log_end - follower.log_end)


def _lag_seconds(sources: Sources) -> Iterator[Sample]:
    for stream, _, follower in _followers(sources):
        now = sources.removal_clock.clock.monotonic()
        since = now if follower.lags_since is None else follower.lags_since
        yield (stream, follower.node), max(0, now - since) / 1e9


REPLICA_METRICS: Final = (
    _of_held(
        "jetstream_stream_replicas",
        "Replicas that the stream is to have, at nodes that hold one; read replicas are not among them.",
        lambda row: row.config.replicas,
    ),
    _of_held(
        "jetstream_stream_isr_replicas",
        "Of these, the ones in sync.",
        lambda row: len(row.isr),
    ),
    _of_held(
        "jetstream_stream_isr_minimum",
        "Replicas that must be in sync for a record to be committed.",
        lambda row: row.config.insync_minimum,
    ),
    Definition(
        "jetstream_replica_lag_records",
        "Records of a stream that this node leads and that another replica has not stored yet; none for one "
        "that was not heard of since this node leads.",
        ("stream", "replica"),
        _lag_records,
    ),
    Definition(
        "jetstream_replica_lag_seconds",
        "Seconds since that replica had everything on disk, or since this node leads; 0 if it has now.",
        ("stream", "replica"),
        _lag_seconds,
    ),
    of_node(
        "jetstream_blank_replicas",
        "Replicas of this node that may hold nothing and count for nothing until they are copied: new ones, "
        "and those whose log or disk is gone.",
        _count_blank,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
