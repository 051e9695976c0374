"""The monotonic clock of one simulated machine: its own start, its own rate, jumps forward."""

from envelope.types import MonotonicNs

_RATE_UNIT = 1_000_000


class DriftingClock:
    """Turns virtual time into a machine's own and back; it never goes back itself."""

    __slots__ = ("_local", "_parts_per_million", "_virtual")

    def __init__(self, start: int, drift_ppm: int) -> None:
        """Begin at ``start`` ns, faster than virtual time by ``drift_ppm`` (slower if negative)."""
        self._virtual, self._local = 0, start
        self._parts_per_million = _RATE_UNIT + drift_ppm

    def local(self, virtual: int) -> MonotonicNs:
        """Return what the clock shows at ``virtual``."""
        return MonotonicNs(self._local + (virtual - self._virtual) * self._parts_per_million // _RATE_UNIT)

    def virtual(self, local: int) -> int:
        """Return when the clock will show ``local`` or more; may lie in the past."""
        return self._virtual + -((self._local - local) * _RATE_UNIT // self._parts_per_million)

    def jump(self, virtual: int, by: int) -> None:
        """Skip ``by`` ns at ``virtual``."""
        self._local, self._virtual = self.local(virtual) + by, virtual
