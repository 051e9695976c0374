"""During one life of a process a replica's high watermark never goes back, but where a loss is told."""

from envelope.types import Offset
from tests.simulation.violation import Violation


class Watermark:
    """The high watermark of one replica during one life."""

    def __init__(self, name: str, known: Offset) -> None:
        self._name = name
        self.offset = known

    def is_at(self, high_watermark: Offset) -> None:
        """The machine says that it is this."""
        if high_watermark < self.offset:
            raise Violation(f"{self._name}: high watermark goes back from {self.offset} to {high_watermark}")
        self.offset = high_watermark

    def lost(self, end: Offset) -> None:
        """What is known to be committed from ``end`` on is reported as lost."""
        self.offset = min(self.offset, end)
