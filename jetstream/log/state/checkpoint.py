"""The checkpoint: how far a log was known to be durable, on record.

The ``checkpoint`` state file is a witness, never an authority: it can show that missing or bad bytes had been
synced, or that a segment had been begun, and it carries the log's start. A missing or older one costs
protection and time, but no data.

`DurabilityMarkers` writes the two state files of a log: the checkpoint and the epochs.
"""

from dataclasses import asdict, dataclass, replace
from typing import Final

from envelope.errors import CorruptDataError
from envelope.types import NO_OFFSET, FilePosition, LeaderEpoch, Offset
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import Json, natural, write_state
from jetstream.log.state.epochs import EPOCHS_FILE, EpochHistory

CHECKPOINT_FILE: Final = "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Content of the checkpoint file.

    Attributes:
        log_start_offset: first offset that is kept.
        synced_end: offset after the last that was known to be synced.
        segment_base: segment that ``synced_position`` is in; its file is there.
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
        """Return the position up to which a segment was known to be synced, 0 if it is another segment."""
        return self.synced_position if segment_base == self.segment_base else FilePosition(0)

    def encode(self) -> dict[str, Json]:
        """Return the content of the state file."""
        return asdict(self)


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


class DurabilityMarkers:
    """Writes the checkpoint and the epochs of one log; each call returns when its content is durable.

    Attributes:
        followed: as in the epochs file.
        says_clean: whether the checkpoint says that nothing was written after it.

    Invariants:
        W1: while bytes are being written, the checkpoint on disk does not say "clean".
            Held by test_power_loss.py, test_bit_flips.py.
    """

    __slots__ = ("_checkpoint", "_directory", "_disk", "followed", "says_clean")

    def __init__(self, disk: Disk, directory: str, checkpoint: Checkpoint | None, *, followed: bool) -> None:
        self._disk = disk
        self._directory = directory
        self._checkpoint = checkpoint
        self.followed = followed
        self.says_clean = checkpoint is not None and checkpoint.clean

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        write_state(self._disk, f"{self._directory}/{CHECKPOINT_FILE}", checkpoint.encode())
        self._checkpoint, self.says_clean = checkpoint, checkpoint.clean

    def forget_clean_close(self) -> None:
        """Take "clean" back, which the checkpoint says, before the first write after a clean close."""
        assert self._checkpoint is not None, "it says so"
        self.write_checkpoint(replace(self._checkpoint, clean=False))

    def write_epochs(self, epochs: EpochHistory, *, followed: bool) -> None:
        """Replace the epochs file."""
        write_state(self._disk, f"{self._directory}/{EPOCHS_FILE}", epochs.encode(followed=followed))
        self.followed = followed
