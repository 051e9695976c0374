"""Counts what a reader process receives, between two moments of the clock that all processes share."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Self


class Unverified(Exception):
    """What was read is not what is stored: the message says what was expected."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one reader has received inside its window."""

    amount: int
    """Records, or bytes where a reader knows no records."""
    seconds: float
    cpu_seconds: float
    passes: int
    """How often the whole stream was read and verified."""
    problem: str | None = None

    @property
    def rate(self) -> float:
        """Amount a second; 0 if nothing came."""
        return self.amount / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the fields for `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Self:
        """Return what `as_json` was made of."""
        return cls(**fields)


Window = tuple[int, int]
"""Begin and end in nanoseconds of the monotonic clock, which all processes share."""


class Meter:
    """Counts inside a window, or from `begin` to the end of one pass.

    A reader reads from its start on, and is told the window when everybody reads. The window opens with the
    first arrival after its begin, which is not counted itself: rates are those of whole chunks between two
    arrivals, whatever their size.
    """

    def __init__(
        self,
        window: Callable[[], Window | None] | None,
        clock: Callable[[], int] = time.monotonic_ns,
        cpu: Callable[[], int] = time.process_time_ns,
    ) -> None:
        """``window`` is asked at each arrival until it is known; without it one pass is measured."""
        self._ask = window
        self._window: Window | None = None
        self._clock = clock
        self._cpu = cpu
        self._first_ns: int | None = None
        self._last_ns = 0
        self._cpu_ns = 0
        self._amount = 0
        self._passes = 0

    def begin(self) -> None:
        """Say that the first request leaves now."""
        if self._ask is None:
            self._open(self._clock())

    def add(self, amount: int) -> bool:
        """Count what has arrived; False says that the window is over."""
        now = self._clock()
        if self._first_ns is None:
            if self._window is None and self._ask is not None:
                self._window = self._ask()
            if self._window is not None and now >= self._window[0]:
                self._open(now)
            return True
        self._amount += amount
        self._last_ns = now
        return self._window is None or now < self._window[1]

    def passed(self) -> bool:
        """Say that everything was read once; False says that this is enough."""
        self._passes += 1
        return self._ask is not None

    def reading(self, problem: str | None = None) -> Reading:
        """Return the result; to be called at once, because CPU time is counted until now."""
        first = self._last_ns if self._first_ns is None else self._first_ns
        seconds = max(0, self._last_ns - first) / 1e9
        cpu_seconds = 0.0 if self._first_ns is None else (self._cpu() - self._cpu_ns) / 1e9
        return Reading(self._amount, seconds, cpu_seconds, self._passes, problem)

    def _open(self, now: int) -> None:
        self._first_ns = self._last_ns = now
        self._cpu_ns = self._cpu()
