"""Feature levels: what every node of a cluster can do, before any node does it.

A cluster has one feature level. Its nodes write and ask for nothing that a node of that level does not
understand. So nodes of two versions work together while they are upgraded one by one, and can go back until
an operator raises the level. It never falls. A node that can less than its cluster's level stops.

Level 0 is that of nodes which did not know levels yet.

Source: KIP-584 (features that are finalised by a command). ADR 0021 says why.
"""

from enum import Enum
from typing import Final

from envelope.errors import FeatureLevelTooLow, UnsupportedFeatureLevel


class Feature(Enum):
    """A thing that nodes of an older level do not understand, and the words for it in errors and docs."""

    DEFAULT_REPLICAS = "a default number of replicas for new streams"
    REPLICA_NUMBERS = "another number of replicas by a stream update"
    INTERNAL_GROWTH = "more replicas of internal streams when there are more nodes"
    REGISTERED_LEVELS = "nodes that name their feature level when they register"
    MEMBER_CHANGES = "other voters of the metadata log than those it began with"
    CLUSTER_IDS = "an id of the cluster"

    @property
    def level(self) -> int:
        """The feature level from which on it may be used."""
        return next(level for level, features in enumerate(LEVELS) if self in features)


LEVELS: Final[tuple[tuple[Feature, ...], ...]] = (
    (),
    (
        Feature.DEFAULT_REPLICAS,
        Feature.REPLICA_NUMBERS,
        Feature.INTERNAL_GROWTH,
        Feature.REGISTERED_LEVELS,
        Feature.MEMBER_CHANGES,
        Feature.CLUSTER_IDS,
    ),
)
"""The features that came with each level. A level that a release has had is never changed."""

LATEST_LEVEL: Final = len(LEVELS) - 1
"""The highest level that this version can."""


def lacking(feature: Feature, level: int) -> FeatureLevelTooLow | None:
    """Return why a feature may not be used at the cluster's level; None: it may."""
    if level >= feature.level:
        return None
    return FeatureLevelTooLow(
        f"{feature.value} needs feature level {feature.level}, and the cluster is at {level}: when all nodes "
        f"are upgraded, raise it with `jetstream cluster update --feature-level {feature.level}`",
        feature_level=level,
        needed=feature.level,
    )


def require(feature: Feature, level: int) -> None:
    """Return if a feature may be used at the cluster's level.

    Raises:
        FeatureLevelTooLow: it may not.
    """
    error = lacking(feature, level)
    if error is not None:
        raise error


def too_old(supported: int, level: int) -> UnsupportedFeatureLevel | None:
    """Return why a node that can ``supported`` has no part in a cluster at ``level``; None: it has."""
    if supported >= level:
        return None
    return UnsupportedFeatureLevel(
        f"this node can feature level {supported}, and the cluster is at {level}: upgrade the node",
        feature_level=level,
        supported=supported,
    )


def refuse_newer(level: int) -> None:
    """Return if this version can do what a cluster at that level does.

    Raises:
        UnsupportedFeatureLevel: it cannot, and is to stop.
    """
    error = too_old(LATEST_LEVEL, level)
    if error is not None:
        raise error
