"""What was known to be durable when it was last written down.

The ``checkpoint`` state file is a witness, never an authority: it can show that bytes which are missing or
bad had been synced, and it carries the log's start. A missing or older one costs protection and time, but
no data.
"""

from dataclasses import dataclass
from typing import Final

from envelope.errors import CorruptDataError
from envelope.types import NO_OFFSET, FilePosition, LeaderEpoch, Offset
from jetstream.log.state_file import Json, natural

CHECKPOINT_FILE: Final = "checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Content of the checkpoint file.

    Attributes:
        log_start_offset: first offset that is kept.
        synced_end: offset after the last that was known to be synced.
        segment_base: segment that ``synced_position`` is in.
        synced_position: byte after the last batch that was known to be synced.
        last_epoch: newest epoch at that time.
        clean: nothing was written after this; ``synced_end`` was the log's end.
        committed: offset below which records were known to be committed; 0: nothing is known.
    """

    log_start_offset: Offset
    synced_end: Offset
    segment_base: Offset
    synced_position: FilePosition
    last_epoch: LeaderEpoch
    clean: bool
    committed: Offset = NO_OFFSET

    def position_in(self, segment_base: Offset) -> FilePosition:
        """Return up to where a segment's bytes were known to be synced, 0 if this is not about that one."""
        return self.synced_position if segment_base == self.segment_base else FilePosition(0)

    def encode(self) -> dict[str, Json]:
        """Return the content of the state file."""
        return {
            "log_start_offset": self.log_start_offset,
            "synced_end": self.synced_end,
            "segment_base": self.segment_base,
            "synced_position": self.synced_position,
            "last_epoch": self.last_epoch,
            "clean": self.clean,
            "committed": self.committed,
        }


def decode_checkpoint(state: dict[str, Json]) -> Checkpoint:
    """Return the checkpoint in a state file.

    Raises:
        CorruptDataError: a field is missing or contradicts another.
    """
    clean = state.get("clean")
    if not isinstance(clean, bool):
        raise CorruptDataError("a checkpoint does not say whether it is clean")
    checkpoint = Checkpoint(
        log_start_offset=Offset(natural(state, "log_start_offset")),
        synced_end=Offset(natural(state, "synced_end")),
        segment_base=Offset(natural(state, "segment_base")),
        synced_position=FilePosition(natural(state, "synced_position")),
        last_epoch=LeaderEpoch(natural(state, "last_epoch")),
        clean=clean,
        committed=Offset(natural(state, "committed") if "committed" in state else 0),
    )
    if not checkpoint.segment_base <= checkpoint.synced_end >= checkpoint.log_start_offset:
        raise CorruptDataError(f"a checkpoint contradicts itself: {checkpoint}")
    return checkpoint
