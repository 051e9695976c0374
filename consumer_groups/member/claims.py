"""The partitions of one member, and its progress in giving partitions up."""

from dataclasses import dataclass
from enum import Enum, auto

from consumer_groups.assignment.partitions import Claim
from consumer_groups.coordinator.events import Assignment


class Stage(Enum):
    """How far a claim has come."""

    READING = auto()
    STOPPING = auto()
    """It is to be given up; what was handed out is perhaps not committed yet."""
    STOPPED = auto()
    """It is given up; the coordinator may not know."""


@dataclass(frozen=True, slots=True)
class ClaimChange:
    """The changes that an assignment makes for a member."""

    lost: tuple[Claim, ...]
    """Held, and not its any more."""
    fresh: tuple[Claim, ...]
    """To be read from now on."""
    asked: tuple[Claim, ...]
    """Read, and to be given up."""
    never_read: tuple[Claim, ...]
    """To be given up before it was heard of: that is done."""


class MemberClaims:
    """The claims of one member.

    Invariants:
        M1: of a partition one claim is held at a time, from when it is to be read until its reading has
            stopped or it is lost, and no claim is read twice.
    """

    def __init__(self) -> None:
        self._stages: dict[Claim, Stage] = {}

    def __str__(self) -> str:
        """Return one line for logs."""
        return " ".join(f"{stage.name.lower()}={len(self.at(stage))}" for stage in Stage)

    def at(self, stage: Stage) -> tuple[Claim, ...]:
        """Return the claims that have come so far."""
        return tuple(claim for claim, each in self._stages.items() if each is stage)

    @property
    def held(self) -> tuple[Claim, ...]:
        """Partitions that are read, or not committed: nobody else may have them."""
        return (*self.at(Stage.READING), *self.at(Stage.STOPPING))

    def follow(self, assignment: Assignment) -> ClaimChange:
        """Take in what the member owns now."""
        lost = self.lose_all_but({*assignment.keeps, *assignment.gives_up})
        fresh = tuple(claim for claim in assignment.keeps if claim not in self._stages)
        never_read = tuple(claim for claim in assignment.gives_up if claim not in self._stages)
        self._stages |= dict.fromkeys(fresh, Stage.READING) | dict.fromkeys(never_read, Stage.STOPPED)
        asked = tuple(claim for claim in assignment.gives_up if self._stages[claim] is Stage.READING)
        self.stop(asked)
        partitions = [claim.partition for claim in self.held]
        assert len(set(partitions)) == len(partitions), f"M1: {sorted(self._stages)}"
        return ClaimChange(lost, fresh, asked, never_read)

    def stop(self, claims: tuple[Claim, ...]) -> None:
        """Take in that these are to be given up."""
        self._stages |= dict.fromkeys(claims, Stage.STOPPING)

    def stopped(self, claims: tuple[Claim, ...]) -> bool:
        """Take in that these have stopped; return whether any of them was still to be given up."""
        stopped = [claim for claim in claims if self._stages.get(claim) is Stage.STOPPING]
        self._stages |= dict.fromkeys(stopped, Stage.STOPPED)
        return bool(stopped)

    def lose_all_but(self, kept: set[Claim]) -> tuple[Claim, ...]:
        """Forget all others; return those of them that were held."""
        gone = {claim: stage for claim, stage in self._stages.items() if claim not in kept}
        for claim in gone:
            del self._stages[claim]
        return tuple(claim for claim, stage in gone.items() if stage is not Stage.STOPPED)

    def lose_all(self) -> tuple[Claim, ...]:
        """Forget everything; return what was held."""
        return self.lose_all_but(set())
