"""One seed's run, whatever is simulated: a phase in which everything goes wrong, then all must converge."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from envelope.types import NodeId
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace
from tests.simulation.violation import Violation

_BROKEN: Final = (Violation, AssertionError, LookupError, TypeError, ValueError, AttributeError)
"""What a checker, or an invariant of the product, raises; and what a bug in the product may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    problem: str | None
    steps: int
    committed: int
    answered: int
    """How many operations of clients."""
    healing_ns: int
    counts: Counter[str]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long healing may take; times in virtual ns."""

    time_max: int
    steps_max: int
    look_every: int | None = None
    """Ask whether everything has converged at least so often; None: after every step."""


class Faults(Protocol):
    """What goes wrong."""

    def died(self, name: NodeId) -> None:
        """A process ends by itself."""

    def end(self) -> None:
        """End every fault; but sometimes somebody stays dead until `revive`."""

    def revive(self) -> None:
        """Start those too that stayed dead."""


class Case(ABC):
    """One simulated world from its beginning to its end; ``faults`` and what is abstract are its own."""

    faults: Faults

    def __init__(
        self, timeline: Timeline, safety_end: int, safety_steps_max: int, patience: Patience
    ) -> None:
        """Begin with the phase of faults, until that moment or so many events."""
        self.timeline = timeline
        self._safety_end, self._safety_steps_max, self._patience = safety_end, safety_steps_max, patience
        self.healing_ns = 0

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many events machines were given."""

    @property
    @abstractmethod
    def committed(self) -> int:
        """How much was ever committed."""

    @property
    @abstractmethod
    def answered(self) -> int:
        """How many operations of clients were answered."""

    @abstractmethod
    def begin_healing(self) -> None:
        """Let nothing go wrong from now on."""

    @abstractmethod
    def is_settled(self) -> bool:
        """Tell whether all that live serve."""

    @abstractmethod
    def text(self) -> str:
        """Return what everything is now."""

    def check_the_end(self) -> None:  # noqa: B027 - most laws are checked all the time
        """Check what can only be checked in the end."""

    def died(self, name: NodeId) -> None:
        """A process ends by itself."""
        self.faults.died(name)

    def run(self) -> None:
        """Run the phase of faults; then heal, and wait until all that live serve; then with all.

        Raises:
            Violation: that takes too long.
        """
        while self.steps < self._safety_steps_max and self.timeline.take_next(self._safety_end):
            pass
        begun_at = self.timeline.now
        self.begin_healing()
        self.faults.end()
        self._settle()
        self.healing_ns = self.timeline.now - begun_at
        self.faults.revive()
        self._settle()
        self.check_the_end()

    def _settle(self) -> None:
        timeline, patience, steps = self.timeline, self._patience, self.steps
        deadline = timeline.now + patience.time_max
        while not self.is_settled():
            look = patience.look_every
            late = not timeline.take_next(deadline if look is None else min(deadline, timeline.now + look))
            if (late and timeline.now >= deadline) or self.steps > steps + patience.steps_max:
                raise Violation(f"not converged: {self.text()}")


def run_case(seed: int, make: Callable[[Trace], Case], write: Callable[[str], object] | None) -> Outcome:
    """Run one seed; ``write`` takes the lines of its trace."""
    trace = Trace(write)
    case: Case | None = None
    problem = None
    try:
        case = make(trace)
        case.run()
    except _BROKEN as error:
        problem = f"{type(error).__name__}: {error}"
        if case is not None and trace.on:
            trace.line(case.timeline.now, "!!!!", problem)
    if case is None:
        return Outcome(
            seed=seed, problem=problem, steps=0, committed=0, answered=0, healing_ns=0, counts=trace.counts
        )
    return Outcome(
        seed=seed,
        problem=problem,
        steps=case.steps,
        committed=case.committed,
        answered=case.answered,
        healing_ns=case.healing_ns,
        counts=trace.counts,
    )
