"""How far a log is compacted, on record.

The ``compaction`` state file of a log's directory:

    {"cleaned_end": 700, "purged_end": 300, "waiting_end": 500, "waiting_since": microseconds}

Below ``cleaned_end`` no record is left that a later one below it replaces. Below ``purged_end`` tombstones
may be gone. It is raised before the first of them goes, and only as far as the log was clean before: so the
log has no record that a tombstone below ``purged_end`` has deleted, whether that is still there or not.
Tombstones below ``waiting_end``, where the log was clean at ``waiting_since``, wait for their retention.
"""

from dataclasses import asdict, dataclass, replace
from typing import Final

from envelope.errors import CorruptDataError
from envelope.types import Offset, TimestampUs
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import Json, decode_state, natural, read_whole, write_state

COMPACTION_FILE: Final = "compaction"

_ENDS: Final = ("cleaned", "purged", "waiting")
_NOTHING: Final = Offset(0)
_NO_TIME: Final = TimestampUs(0)


@dataclass(frozen=True, slots=True)
class CompactionState:
    """Content of the file.

    Invariant:
        K1: tombstones wait only where the log is clean: waiting_end <= cleaned_end.
    """

    cleaned_end: Offset = _NOTHING
    purged_end: Offset = _NOTHING
    waiting_end: Offset = _NOTHING
    """0: no tombstones wait."""
    waiting_since: TimestampUs = _NO_TIME

    def __post_init__(self) -> None:
        assert self.waiting_end <= self.cleaned_end, f"K1: {self}"

    def purgeable_end(self, min_synced_end: Offset, now: TimestampUs, retention_us: int) -> Offset:
        """Return the offset below which tombstones may go now; `purged_end` if no others may.

        A clock that was set back makes them wait longer, never shorter.

        Args:
            min_synced_end: every replica has on disk what lies below.
            now: wall clock.
            retention_us: how long they are kept after the records that they delete are gone.
        """
        if self.waiting_end == _NOTHING or now - self.waiting_since < retention_us:
            return self.purged_end
        return max(self.purged_end, min(self.waiting_end, min_synced_end))

    def purged(self, end: Offset) -> "CompactionState":
        """Return the state from before tombstones below ``end`` go."""
        return replace(self, purged_end=max(end, self.purged_end))

    def cleaned(self, end: Offset, now: TimestampUs, *, tombstones: bool) -> "CompactionState":
        """Return the state after all below ``end`` was cleaned; ``tombstones``: some may be left there."""
        end = max(end, self.cleaned_end)
        if not tombstones or end <= self.purged_end:
            return CompactionState(end, self.purged_end)
        if self.waiting_end > self.purged_end:
            return replace(self, cleaned_end=end)
        return CompactionState(end, self.purged_end, end, now)

    def cut(self, end: Offset) -> "CompactionState":
        """Return the state of a log that was cut at ``end``: records that follow there are not clean."""
        return CompactionState(
            min(self.cleaned_end, end),
            min(self.purged_end, end),
            min(self.waiting_end, end),
            self.waiting_since,
        )

    def encode(self) -> dict[str, Json]:
        """Return the content of the state file."""
        return asdict(self)


def decode_compaction(state: dict[str, Json]) -> CompactionState:
    """Return the state in a state file.

    Raises:
        CorruptDataError: a field is missing or contradicts another.
    """
    cleaned, purged, waiting = (Offset(natural(state, f"{name}_end")) for name in _ENDS)
    if waiting > cleaned:
        raise CorruptDataError(f"a compaction file contradicts itself: {state}")
    return CompactionState(cleaned, purged, waiting, TimestampUs(natural(state, "waiting_since")))


def recovered_compaction(
    disk: Disk, directory: str, log_end_offset: Offset
) -> tuple[CompactionState, str | None]:
    """Return the state of a log that is being opened, and the problem with its file, if any.

    Behind the log's end, where a crash has cut it, nothing is clean any more, durably.

    Raises:
        StorageError, FsyncFailed, DiskFull: the disk refused.
    """
    path = f"{directory}/{COMPACTION_FILE}"
    if not disk.exists(path):
        return CompactionState(), None
    try:
        state = decode_compaction(decode_state(read_whole(disk, path)))
    except CorruptDataError as error:
        # Tombstones may be missing anywhere then: a replica with fewer must not build on this log.
        state = CompactionState(purged_end=log_end_offset)
        return state, f"the compaction file is unusable: {error}"
    if state.cleaned_end > log_end_offset:
        state = state.cut(log_end_offset)
        write_state(disk, path, state.encode())
    return state, None
