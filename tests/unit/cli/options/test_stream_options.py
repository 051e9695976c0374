from datetime import timedelta

import pytest
import typer

from envelope.types import AckPolicy, Compact, Compression, PartitionBy, SyncMode
from jetstream.cli.options.stream_options import StreamOptions
from metadata.stream_config import StreamConfig


def test_nothing_given_changes_nothing() -> None:
    assert StreamOptions().patch() == {}


def test_what_is_given_has_the_keys_of_a_configuration() -> None:
    options = StreamOptions(
        replicas=1,
        min_insync_replicas=1,
        read_replicas=0,
        unclean_election=False,
        read_only=True,
        ack=AckPolicy.LEADER,
        sync=SyncMode.INTERVAL,
        sync_interval=timedelta(seconds=2),
        compression=Compression.ZSTD,
        segment_bytes=1 << 20,
        segment_age=timedelta(days=1),
        record_bytes_max=1000,
        retention_age=timedelta(days=7),
        retention_bytes=1 << 30,
        retention_messages=10,
        tier=True,
        local_retention=timedelta(days=2),
        local_retention_bytes=1 << 30,
        compact=Compact.KEY,
        compact_dirty_ratio=0.2,
        compact_age_max=timedelta(hours=1),
        tombstone_retention=timedelta(hours=2),
        rewrite_after=timedelta(0),
        dedupe_window=timedelta(0),
        dedupe_ids_max=1000,
        session_window=timedelta(days=1),
        txid_max_step=1000,
        group="workers",
        partitions=4,
        partition_by=PartitionBy.QUEUE,
        labels=["team=a", "empty="],
    )
    patch = options.patch()
    config = StreamConfig.model_validate({"name": "a", "subject": "a.>", **patch})
    not_to_be_asked_for = {"partition_of", "partition"}
    assert set(patch) == set(StreamConfig.model_fields) - {"name", "subject"} - not_to_be_asked_for
    assert config.retention.messages == 10
    assert config.dedupe_window == config.rewrite_after == timedelta(0)
    assert config.labels == {"team": "a", "empty": ""}


def test_a_limit_of_zero_is_no_limit_and_a_window_of_zero_is_a_window() -> None:
    none = timedelta(0)
    options = StreamOptions(
        segment_age=none, retention_age=none, retention_bytes=0, retention_messages=0, dedupe_window=none
    )
    assert options.patch() == {
        "segment_age": None,
        "retention": {"age": None, "bytes": None, "messages": None},
        "dedupe_window": none,
    }


def test_a_label_without_a_value_sign_is_a_usage_error() -> None:
    with pytest.raises(typer.BadParameter):
        StreamOptions(labels=["team"]).patch()
