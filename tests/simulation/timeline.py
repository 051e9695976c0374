"""Virtual time: what happens next, and when."""

import heapq
from collections.abc import Callable

Step = Callable[..., None]


class Timeline:
    """Steps in the order of their times; those of one time in the order they were planned.

    Times are virtual nanoseconds since the start of the run.
    """

    __slots__ = ("_planned", "_steps", "now")

    def __init__(self) -> None:
        self.now = 0
        self._planned = 0
        self._steps: list[tuple[int, int, Step, tuple[object, ...]]] = []

    def at(self, moment: int, step: Step, *arguments: object) -> None:
        """Take ``step`` at ``moment``, which is not before now."""
        assert moment >= self.now, f"{moment} was before {self.now}"
        self._planned += 1
        heapq.heappush(self._steps, (moment, self._planned, step, arguments))

    def after(self, delay: int, step: Step, *arguments: object) -> None:
        """Take ``step`` once ``delay`` has passed."""
        self.at(self.now + delay, step, *arguments)

    def take_next(self, until: int) -> bool:
        """Take the next step unless it comes after ``until``; tell whether there was one."""
        if not self._steps or self._steps[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, step, arguments = heapq.heappop(self._steps)
        step(*arguments)
        return True
