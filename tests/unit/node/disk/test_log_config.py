"""What a log is told of its stream's configuration about the ends of segments."""

from datetime import timedelta
from typing import Any

import pytest

from envelope.limits import GIB, KIB, MIB, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MIN
from envelope.types import Compact
from jetstream.node.disk.open_log import log_config
from metadata.stream_config import Retention, StreamConfig
from tests.support.compaction import append_records, compact, latest, stored_records
from tests.support.logs import NOW, Record, begun
from tests.support.memory_disk import MemoryDisk

HOUR = timedelta(hours=1)
HOUR_US = 3_600 * 10**6


COMPACTED = StreamConfig(
    name="orders",
    subject="orders",
    compact=Compact.KEY,
    compact_age_max=HOUR,
    dedupe_window=timedelta(0),  # records that are younger stay
)


@pytest.mark.parametrize(
    ("changes", "hours"),
    [
        ({}, 1),
        ({"segment_age": 2 * HOUR}, 1),
        ({"segment_age": 2 * HOUR, "compact_age_max": 3 * HOUR}, 2),
        ({"compact": Compact.NONE}, None),
        ({"compact": Compact.NONE, "segment_age": 2 * HOUR}, 2),
    ],
)
def test_a_compacted_log_ends_its_segments_at_the_age_of_compaction(
    changes: dict[str, Any], hours: int | None
) -> None:
    wanted = None if hours is None else hours * HOUR_US
    assert log_config(COMPACTED.model_copy(update=changes)).segment_age_us == wanted


@pytest.mark.parametrize("dirty_ratio", [0.5, 1.0])
def test_old_values_of_a_key_go_though_its_stream_has_few_messages(dirty_ratio: float) -> None:
    """A message every two hours: no segment is ever full."""
    disk = MemoryDisk()
    log = begun(disk, log_config(COMPACTED.model_copy(update={"compact_dirty_ratio": dirty_ratio})))
    for turn in range(6):
        now = NOW + 2 * turn * HOUR_US
        append_records(log, [Record(b"%d" % turn, key=b"k", timestamp=now)])
        compact(disk, log, now)
    stored = stored_records(log)
    assert set(stored) == {4, 5}, "the last of those in ended segments, and the one that has come now"
    assert latest(stored) == {b"k": (5, b"5")}
    assert log.reader.size < 10 * KIB < log.writer.config.segment_bytes


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, SEGMENT_BYTES_DEFAULT),
        ({"retention": Retention(bytes=64 * MIB)}, 16 * MIB),
        ({"retention": Retention(bytes=100 * GIB)}, SEGMENT_BYTES_DEFAULT),
        ({"retention": Retention(bytes=SEGMENT_BYTES_MIN)}, SEGMENT_BYTES_MIN),
        ({"retention": Retention(bytes=64 * MIB), "segment_bytes": MIB}, MIB),
        ({"retention": Retention(bytes=64 * MIB), "segment_bytes": GIB}, GIB),
        ({"retention": Retention(bytes=64 * MIB), "tier": True, "local_retention_bytes": 8 * MIB}, 2 * MIB),
        ({"local_retention_bytes": 8 * MIB}, SEGMENT_BYTES_DEFAULT),
    ],
)
def test_segments_are_a_quarter_of_the_bytes_to_keep_unless_the_stream_says_how_large(
    changes: dict[str, Any], wanted: int
) -> None:
    config = StreamConfig(name="orders", subject="orders", **changes)
    assert log_config(config).segment_bytes == wanted
