"""The numbers of replicas: how many a stream has in sync, and those that lack what they should have.

The catalogue knows them: each node that holds a replica shows them as far as it has heard of the catalogue.
"""

from collections.abc import Callable, Iterator
from typing import Final

from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_node
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
    of_node(
        "jetstream_blank_replicas",
        "Replicas of this node that may hold nothing and count for nothing until they are copied: new ones, "
        "and those whose log or disk is gone.",
        _count_blank,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
