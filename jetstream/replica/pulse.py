"""Whether a peer lives, judged by what is heard of it and by how dialling it ends."""

from enum import Enum, auto


class Verdict(Enum):
    """Whether a peer counts as alive."""

    ALIVE = auto()
    """It was heard within the timeout, or has that long from the start to be heard for the first time."""
    SILENT = auto()
    """Nothing was heard for the timeout."""
    DEAD = auto()
    """Its process is gone: nothing listens where it did."""


class Pulse:
    """Pure. Silence is added up from what it is told has passed, so that the caller need not count its own.

    Each method returns the verdict if it is another one now, None if it is not.

    Invariant:
        V1: no peer counts as silent or dead that was heard within the timeout, unless its process is gone.
    """

    def __init__(self, timeout_ns: int) -> None:
        """Begin with a peer that has ``timeout_ns`` nanoseconds to be heard."""
        self.verdict = Verdict.ALIVE
        self._timeout_ns = timeout_ns
        self._silence_ns = 0
        self._was_reached = False
        self._is_refused = False

    def heard(self) -> Verdict | None:
        """Take in that the peer said something."""
        self._silence_ns, self._was_reached, self._is_refused = 0, True, False
        return None if self.verdict is Verdict.ALIVE else self._judged(Verdict.ALIVE)

    def unreached(self, *, refused: bool) -> Verdict | None:
        """Take in that no connection could be made; ``refused`` if nothing listens there.

        A peer that was never reached may not have started yet: that it is dead is said after the timeout.
        """
        self._is_refused = refused
        is_overdue = self._silence_ns >= self._timeout_ns
        return self._judged(Verdict.DEAD) if refused and (self._was_reached or is_overdue) else None

    def passed(self, elapsed_ns: int) -> Verdict | None:
        """Take in that nanoseconds have passed in which the peer could have been heard."""
        assert elapsed_ns >= 0, f"V1: {elapsed_ns} ns have passed"
        self._silence_ns += elapsed_ns
        if self.verdict is not Verdict.ALIVE or self._silence_ns < self._timeout_ns:
            return None
        return self._judged(Verdict.DEAD if self._is_refused else Verdict.SILENT)

    def _judged(self, verdict: Verdict) -> Verdict | None:
        if verdict is self.verdict:
            return None
        is_gone = self._is_refused and self._was_reached
        is_overdue = self._silence_ns >= self._timeout_ns
        assert verdict is Verdict.ALIVE or is_gone or is_overdue, f"V1: {verdict} after {self._silence_ns} ns"
        self.verdict = verdict
        return verdict
