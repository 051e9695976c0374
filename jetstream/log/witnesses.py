"""The two state files of a log, as the writer keeps them."""

from dataclasses import replace

from jetstream.log.checkpoint import CHECKPOINT_FILE, Checkpoint
from jetstream.log.disk import Disk
from jetstream.log.epochs import EPOCHS_FILE, EpochHistory
from jetstream.log.state_file import write_state


class Witnesses:
    """Writes the checkpoint and the epochs of one log; each call returns when its content is durable.

    Attributes:
        followed: as in the epochs file.

    Invariants:
        W1: while bytes are being written, the checkpoint on disk does not say "clean".
    """

    __slots__ = ("_checkpoint", "_directory", "_disk", "followed")

    def __init__(self, disk: Disk, directory: str, found: Checkpoint | None, *, followed: bool) -> None:
        """Begin with what recovery found."""
        self._disk = disk
        self._directory = directory
        self._checkpoint = found
        self.followed = followed

    @property
    def says_clean(self) -> bool:
        """Whether the checkpoint says that nothing was written after it."""
        return self._checkpoint is not None and self._checkpoint.clean

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint."""
        write_state(self._disk, f"{self._directory}/{CHECKPOINT_FILE}", checkpoint.encode())
        self._checkpoint = checkpoint

    def forget_clean_close(self) -> None:
        """Take "clean" back before the first write after a clean close."""
        if self._checkpoint is not None and self._checkpoint.clean:
            self.write_checkpoint(replace(self._checkpoint, clean=False))

    def write_epochs(self, epochs: EpochHistory, *, followed: bool) -> None:
        """Replace the epochs file."""
        write_state(self._disk, f"{self._directory}/{EPOCHS_FILE}", epochs.encode(followed=followed))
        self.followed = followed
