"""What a stream that is made again is to be, and from what it may be made."""

from dataclasses import replace

import pytest

from envelope.errors import RemovalPending
from envelope.types import Incarnation, LeaderEpoch, NodeId, StreamName
from jetstream.node.api.restore import check_removals, restored_config
from jetstream.tier.restore import Remains
from metadata.api.requests import RestoreStreamRequest
from metadata.catalog.tables import Removal
from metadata.stream_config import StreamConfig
from tests.support.manifests import WHOLE

CONFIG = StreamConfig(
    name="orders", subject="orders.>", tier=True, replicas=3, min_insync_replicas=2, read_replicas=2
)
REMAINS = Remains("orders@b/manifest", replace(WHOLE, config=CONFIG), LeaderEpoch(2), ())


@pytest.mark.parametrize(
    ("replicas", "node_count", "expected"),
    [
        (None, 1, (3, 2, 2)),
        (3, 5, (3, 2, 2)),
        (3, 4, (3, 2, 1)),
        (1, 1, (1, 1, 0)),
        (1, 2, (1, 1, 1)),
        (3, 1, (3, 2, 0)),
        (5, 7, (5, 2, 2)),
    ],
)
def test_with_other_replicas_the_rest_is_what_a_smaller_cluster_can_hold(
    replicas: int | None, node_count: int, expected: tuple[int, int, int]
) -> None:
    request = RestoreStreamRequest(name="orders", replicas=replicas)
    config = restored_config(request, REMAINS, node_count)
    assert (config.replicas, config.min_insync_replicas, config.read_replicas) == expected
    others = {"replicas", "min_insync_replicas", "read_replicas"}
    assert config.model_dump(exclude=others) == CONFIG.model_dump(exclude=others)


def test_a_majority_stays_one_of_as_many_replicas_as_there_are() -> None:
    config = StreamConfig(name="orders", subject="orders.>", replicas=3)
    remains = replace(REMAINS, manifest=replace(WHOLE, config=config))
    restored = restored_config(RestoreStreamRequest(name="orders", replicas=1), remains, 1)
    assert (restored.min_insync_replicas, restored.insync_minimum) == (None, 1)


@pytest.mark.parametrize("life", ["a", "b"])
def test_what_will_be_deleted_is_not_made_a_stream_of(life: str) -> None:
    segments = tuple(replace(segment, path=f"orders@a/{segment.base}") for segment in WHOLE.segments)
    remains = replace(REMAINS, manifest=replace(WHOLE, segments=segments))
    others = [
        Removal(StreamName("orders"), Incarnation("c"), (NodeId("n1"),), is_tiered=True),
        Removal(StreamName("other"), Incarnation(life), (NodeId("n1"),), is_tiered=True),
    ]
    check_removals(remains, others)
    owed = Removal(StreamName("orders"), Incarnation(life), (NodeId("n1"),), is_tiered=True)
    with pytest.raises(RemovalPending):
        check_removals(remains, [*others, owed])
