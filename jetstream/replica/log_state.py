"""The state of a log for the replication machines: its epochs and its ends, never its records."""

from envelope.types import NO_OFFSET, Offset
from envelope.values import value
from jetstream.log.state.epochs import EpochHistory


@value(frozen=True, slots=True)
class LogState:
    """The state of a log at one moment; nothing is being written to it."""

    epochs: EpochHistory
    log_start_offset: Offset
    log_end_offset: Offset
    synced_end: Offset
    """What counts as durable ends here: at or below the log end."""
    purged_end: Offset = NO_OFFSET
    """Tombstones below may be missing: `jetstream.log.state.compaction_state`."""
