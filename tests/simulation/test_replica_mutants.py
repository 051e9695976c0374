"""Every deliberate bug in replication is found: by the checkers alone, with the product's assertions off.

What each takes, and how to look for other seeds, is in docs/testing.md.
"""

import pytest

from tests.simulation.mutation import Mutant
from tests.simulation.replica.cluster import run
from tests.simulation.replica.mutants import MUTANTS
from tests.simulation.search import fails_scenario, search

_SEEDS_MAX = 150
_DEEP_SEEDS_MAX = 30_000

_SIMULATED = {name: mutant for name, mutant in MUTANTS.items() if mutant.scenario is None}
_DIRECTED = {name: mutant for name, mutant in MUTANTS.items() if mutant.scenario is not None}

_mutants = pytest.mark.parametrize("mutant", _SIMULATED.values(), ids=_SIMULATED)


@_mutants
def test_the_simulator_finds_the_mutant_of_replication(mutant: Mutant) -> None:
    found = search(mutant, first=mutant.first, seeds=_SEEDS_MAX, finds=1)
    assert found.finds, (
        f"no seed from {mutant.first} on finds it: write down another first one, which "
        f"`python -m tests.simulation mutants {mutant.name}` prints"
    )


@pytest.mark.parametrize("mutant", _DIRECTED.values(), ids=_DIRECTED)
def test_a_directed_test_finds_the_mutant_of_replication_that_is_too_rare_for_seeds(mutant: Mutant) -> None:
    assert fails_scenario(mutant)


@pytest.mark.deep
@_mutants
def test_the_simulator_finds_the_mutant_of_replication_from_any_seed_on(mutant: Mutant) -> None:
    assert search(mutant, first=5_000_000, seeds=_DEEP_SEEDS_MAX, finds=1).finds


def test_the_seeds_that_find_a_mutant_find_nothing_in_replication() -> None:
    firsts = sorted({mutant.first for mutant in MUTANTS.values()})
    assert len(firsts) > 1
    assert not [outcome for first in firsts if (outcome := run(first)).problem]
