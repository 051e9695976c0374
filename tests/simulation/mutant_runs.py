"""What the tests of every simulator do with its deliberate bugs."""

from collections.abc import Callable, Mapping
from typing import Final

from tests.simulation.mutation import Mutant
from tests.simulation.outcome import Outcome
from tests.simulation.search import search

_SEEDS_MAX: Final = 150
_DEEP_FIRST: Final = 50_000_000
"""Seeds from there on have all kinds of clusters."""


def simulated(mutants: Mapping[str, Mutant]) -> dict[str, Mutant]:
    """Return those that seeds find."""
    return {name: mutant for name, mutant in mutants.items() if mutant.scenario is None}


def directed(mutants: Mapping[str, Mutant]) -> dict[str, Mutant]:
    """Return those that a directed test finds."""
    return {name: mutant for name, mutant in mutants.items() if mutant.scenario is not None}


def check_found(mutant: Mutant) -> None:
    """Assert that a seed finds it, from the one written down on."""
    found = search(mutant, first=mutant.first, seeds=_SEEDS_MAX, finds=1)
    assert found.finds, (
        f"no seed from {mutant.first} on finds it: write down another first one, which "
        f"`python -m tests.simulation mutants {mutant.name}` prints"
    )


def check_found_anew(mutant: Mutant, seeds_max: int) -> None:
    """Assert that seeds find it that have nothing to do with the one written down."""
    assert search(mutant, first=_DEEP_FIRST, seeds=seeds_max, finds=1).finds


def check_sound(mutants: Mapping[str, Mutant], run: Callable[[int], Outcome]) -> None:
    """Assert that the seeds that find the bugs find nothing where there is none."""
    firsts = sorted({mutant.first for mutant in mutants.values()})
    assert not [outcome for first in firsts if (outcome := run(first)).problem]
