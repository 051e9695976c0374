"""What is wrong with one machine's disk, whatever is written to it."""

from collections.abc import Callable
from dataclasses import dataclass


def _nobody() -> None:
    """Tell nobody."""


@dataclass(slots=True)
class DiskState:
    """Slow, full, about to fail; shared by all who write to the disk."""

    slowness: int = 1
    """By what factor everything takes longer."""
    full: bool = False
    """Takes nothing more for now."""
    failing: bool = False
    """The next sync fails, and `failed` is told: the process is to stop."""
    failed: Callable[[], None] = _nobody

    def calm(self) -> None:
        """Be well from now on."""
        self.slowness, self.full, self.failing = 1, False, False
