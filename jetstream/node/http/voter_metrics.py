"""The numbers of the metadata log's voters: the node that leads the log knows them, others show 0."""

from typing import Final

from jetstream.node.http.metric_sources import Sources, of_node
from metadata.controller.settings import VOTER_HEARD_NS
from metadata.node.timers.movable_timer import now


def _count_voters(sources: Sources) -> int:
    quorum = sources.metadata.member.membership()
    return 0 if quorum is None else len(quorum.configuration.electorate)


def _count_heard(sources: Sources) -> int:
    quorum = sources.metadata.member.membership()
    if quorum is None:
        return 0
    return sum(quorum.is_heard(voter, now(), VOTER_HEARD_NS) for voter in quorum.configuration.electorate)


VOTER_METRICS: Final = (
    of_node(
        "jetstream_metadata_voters",
        "Voters of the metadata log, where this node leads it; otherwise 0.",
        _count_voters,
    ),
    of_node(
        "jetstream_metadata_voters_heard",
        "Of these, the ones that have answered within two seconds, and this node; the others are dead, or "
        "cut off from it.",
        _count_heard,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
