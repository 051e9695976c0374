"""A range of a leased segment file on its way to a reader or to another node.

Whether its pages are in the page cache is asked before each turn (``preadv`` with ``RWF_NOWAIT``), because
``sendfile`` would stop the event loop for a disk read.
"""

import os
from dataclasses import dataclass
from typing import Final

from envelope.errors import OutOfResources
from envelope.limits import KIB
from jetstream.log.reader import FileRange
from metadata.node.admission.descriptors import DescriptorShare, may_keep

_PROBE_STEP: Final = 128 * KIB
"""The kernel's default read-ahead: pages come and go in about this grain."""

_INLINE_BYTES_MAX: Final = 16 * KIB
"""Below it a copy costs less than the calls that save it."""

_PROBE_BUFFER: Final = bytearray(1)


@dataclass(slots=True, eq=False)
class Body:
    """A leased file range on its way out; ``position`` moves."""

    file_range: FileRange
    fileno: int
    position: int
    end: int
    warm_end: int
    """The page cache held everything below this position a moment ago."""
    catches_up: bool
    """There is more behind it: its reader waits for turns while something is stored."""

    @classmethod
    def leased(
        cls,
        file_range: FileRange,
        *,
        catches_up: bool = False,
        share: DescriptorShare = DescriptorShare.READERS,
    ) -> "Body":
        """Take a lease on the segment, whose file is one of ``share``'s; `release` gives it back.

        Raises:
            UnavailableError: the segment was removed in the meantime.
            OutOfResources: there is no descriptor left for it.
        """
        segment = file_range.segment
        was_open = segment.is_open
        fileno = segment.acquire().fileno()
        if not was_open and not may_keep(share, fileno):
            segment.release()
            raise OutOfResources("no descriptor is left for another segment that is read")
        start = file_range.position
        return cls(
            file_range=file_range,
            fileno=fileno,
            position=start,
            end=start + file_range.length,
            warm_end=start,
            catches_up=catches_up,
        )

    def __len__(self) -> int:
        """Bytes that are not on their way yet."""
        return self.end - self.position

    def release(self) -> None:
        """Give the segment back."""
        self.file_range.segment.release()

    @property
    def is_small(self) -> bool:
        """Whether it had better go out with its header."""
        return self.end - self.position <= _INLINE_BYTES_MAX

    def taken(self) -> bytes | None:
        """Return all of it from the page cache and release it, if it is small: one call sends it then."""
        if not self.is_small:
            return None
        length = self.end - self.position
        room = bytearray(length)
        try:
            count = os.preadv(self.fileno, [room], self.position, os.RWF_NOWAIT)
        except OSError:  # as in `_cached`
            return None
        if count < length:
            return None
        self.release()
        return bytes(room)

    def is_warm(self, length: int) -> bool:
        """Return whether the next ``length`` bytes are in the page cache, as far as probes can see."""
        end = min(self.end, self.position + length)
        if end <= self.warm_end:
            return True
        if not all(self._cached(place) for place in (*range(self.position, end, _PROBE_STEP), end - 1)):
            return False
        self.warm_end = end
        return True

    def warm(self, length: int) -> None:
        """Read the next ``length`` bytes into the page cache; blocks, for a thread, with a lease of its own.

        Raises:
            OSError: the disk cannot read them.
        """
        end = min(self.end, self.position + length)
        scratch = bytearray(_PROBE_STEP)
        place = self.position
        while place < end and (count := os.preadv(self.fileno, [scratch], place)):
            place += count
        self.warm_end = end

    def _cached(self, place: int) -> bool:
        try:
            os.preadv(self.fileno, [_PROBE_BUFFER], place, os.RWF_NOWAIT)
        except OSError:
            # EAGAIN: not in memory. EOPNOTSUPP: unknown on this file system, so a thread reads first.
            return False
        return True
