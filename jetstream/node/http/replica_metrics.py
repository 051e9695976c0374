"""The numbers of replicas that lack what they should have."""

from typing import Final

from jetstream.node.http.metric_sources import Sources, of_node


def _count_blank(sources: Sources) -> int:
    return sum(sources.node in row.blank for row in sources.streams.catalog.streams())


REPLICA_METRICS: Final = (
    of_node(
        "jetstream_blank_replicas",
        "Replicas of this node that may hold nothing and count for nothing until they are copied: new ones, "
        "and those whose log or disk is gone.",
        _count_blank,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
