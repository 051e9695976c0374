"""What one log is told to be, in the units that its decisions are made in."""

from dataclasses import dataclass

from envelope.limits import SEGMENT_BYTES_DEFAULT
from envelope.types import SyncMode


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Settings of one log; a change takes effect at the next append, roll or retention run.

    Attributes:
        segment_bytes: a batch that would make the active segment larger begins a new one; larger segments
            mean fewer files, smaller ones let retention free space in finer steps.
        segment_age_us: a batch that comes this long after the active segment's first begins a new one.
        sync: what `Log.synced_end` means, and so when a record may be acknowledged.
        retention_age_us: segments whose newest record is older are removed.
        retention_bytes: the oldest segments are removed while the rest holds at least this much.
        retention_messages: the oldest segments are removed while the rest holds at least this many records.
    """

    segment_bytes: int = SEGMENT_BYTES_DEFAULT
    segment_age_us: int | None = None
    sync: SyncMode = SyncMode.ALWAYS
    retention_age_us: int | None = None
    retention_bytes: int | None = None
    retention_messages: int | None = None
