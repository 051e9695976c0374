"""What happened, one line an event; and how often."""

from collections import Counter
from collections.abc import Callable


class Trace:
    """Writes lines while it is on; counts always, so that a test can tell what its seeds went through."""

    __slots__ = ("_write", "counts", "on")

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        """Hand every line to ``write``, or keep silent."""
        self._write = write
        self.on = write is not None
        self.counts: Counter[str] = Counter()

    def line(self, now: int, who: str, what: str) -> None:
        """Write what ``who`` did at ``now`` (virtual ns); ask `on` before composing it."""
        if self._write is not None:
            self._write(f"{now / 1e6:11.3f} ms  {who:<4} {what}\n")

    def fault(self, now: int, what: str, kind: str) -> None:
        """Count a fault of ``kind`` and write it."""
        self.counts[kind] += 1
        if self._write is not None:
            self._write(f"{now / 1e6:11.3f} ms  ---- {what}\n")
