"""The settings of one log, in the units of its decisions."""

from dataclasses import dataclass

from envelope.limits import SEGMENT_BYTES_DEFAULT
from envelope.types import Compression, SyncMode


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """How a log that keeps the last record of each key is compacted.

    Attributes:
        dirty_ratio: part of the cleanable bytes that is dirty when a pass is due.
        age_us: age of a dirty segment at which a pass is due whatever the ratio is.
        tombstone_retention_us: how long tombstones stay after the records that they delete are gone.
        lag_us: records that are younger, in the log's own time, are not cleaned.
        codec: of batches that are encoded anew.
    """

    dirty_ratio: float
    age_us: int
    tombstone_retention_us: int
    lag_us: int = 0
    codec: Compression = Compression.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one log; a change takes effect at the next append, roll or retention run.

    Attributes:
        segment_bytes: a batch that would make the active segment larger begins a new one; larger segments
            mean fewer files, smaller ones let retention free space in finer steps.
        segment_age_us: a batch that comes this long after the active segment's first begins a new one.
        sync: the meaning of `LogWriter.synced_end`, and so when a record may be acknowledged.
        retention_age_us: segments whose newest record is older are removed.
        retention_bytes: the oldest segments are removed while the rest holds at least this much.
        retention_messages: the oldest segments are removed while the rest holds at least this many offsets.
        retention_lag_us: segments whose newest record is not older go neither for bytes nor for messages.
        compaction: of a log that keeps the last record of each key; None: it keeps all.
        rewrite_after_us: small batches of sealed segments are merged once the newest record is so old; None:
            never.
    """

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    segment_age_us: int | None = None
    sync: SyncMode = SyncMode.ALWAYS
    retention_age_us: int | None = None
    retention_bytes: int | None = None
    retention_messages: int | None = None
    retention_lag_us: int = 0
    compaction: CompactionConfig | None = None
    rewrite_after_us: int | None = None
