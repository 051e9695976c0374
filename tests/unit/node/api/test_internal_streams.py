"""What internal streams are told to be."""

from datetime import timedelta

import pytest

from envelope.errors import NotEnoughReplicas
from envelope.internal_streams import AUDIT, CURSORS, INTERNAL_STREAMS, is_group_shard
from envelope.limits import CURSOR_RECORD_BYTES_MAX, GROUP_NAMES_BYTES_MAX
from envelope.types import AckPolicy, Compact, NodeId, StreamName, SyncMode
from jetstream.node.api.internal_streams import internal_config
from metadata.stream_config import StreamConfig

FIVE = tuple(NodeId(f"n{number}") for number in range(5))


@pytest.mark.parametrize("name", INTERNAL_STREAMS)
def test_an_internal_stream_forgets_nothing_that_was_acked(name: StreamName) -> None:
    config = internal_config(name, "js.api", FIVE, FIVE)
    assert config.name == name
    assert (config.replicas, config.ack, config.sync) == (3, AckPolicy.ALL, SyncMode.ALWAYS)
    compact = Compact.NONE if name == AUDIT else Compact.KEY
    assert (config.compact, config.retention) == (compact, StreamConfig.model_fields["retention"].default)
    assert config == StreamConfig.model_validate(dict(config)), "what was set apart is valid, too"


def test_a_shard_has_room_for_a_whole_group_and_nobody_publishes_to_it() -> None:
    shard, cursors = StreamName("__cursors/3"), CURSORS
    config = internal_config(shard, "js.api", FIVE, FIVE)
    assert is_group_shard(shard)
    assert config.subject == "js.api.cursors.groups.3"
    assert config.record_bytes_max >= 4 * GROUP_NAMES_BYTES_MAX
    assert config.dedupe_window == timedelta(0)
    plain = internal_config(cursors, "js.api", FIVE, FIVE)
    assert (plain.subject, plain.record_bytes_max) == ("js.api.cursors.plain.*.*", CURSOR_RECORD_BYTES_MAX)


def test_the_audit_forgets_by_retention_alone_and_in_small_steps() -> None:
    config = internal_config(AUDIT, "js.api", FIVE, FIVE)
    assert config.subject == "js.api.audit.*.*"
    assert config.segment_age == timedelta(days=7), "the last segment is never removed"
    assert config.dedupe_window > timedelta(0), "a record is published until it is acked"


@pytest.mark.parametrize(("known", "alive", "replicas"), [(1, 1, 1), (2, 2, 2), (5, 3, 3)])
def test_an_internal_stream_is_on_as_many_nodes_as_there_are_but_no_more_than_three(
    known: int, alive: int, replicas: int
) -> None:
    assert internal_config(CURSORS, "js.api", FIVE[:known], FIVE[:alive]).replicas == replicas


def test_an_internal_stream_is_not_made_with_fewer_copies_than_it_is_to_have() -> None:
    with pytest.raises(NotEnoughReplicas, match="__cursors/1"):
        internal_config(StreamName("__cursors/1"), "js.api", FIVE, FIVE[:2])
