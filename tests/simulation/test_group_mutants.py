"""Every deliberate bug in consumer groups is found: by checkers alone, with the product's assertions off."""

import pytest

from tests.simulation.groups.cluster import run
from tests.simulation.groups.mutants import MUTANTS
from tests.simulation.mutant_runs import check_found, check_found_anew, check_sound, directed, simulated
from tests.simulation.mutation import Mutant
from tests.simulation.search import fails_scenario

_mutants = pytest.mark.parametrize("mutant", simulated(MUTANTS).values(), ids=simulated(MUTANTS))


@pytest.mark.slow("tests/simulation/test_group_checkers.py")
@_mutants
def test_the_simulator_finds_the_mutant_of_groups(mutant: Mutant) -> None:
    check_found(mutant)


@pytest.mark.slow("tests/simulation/test_group_checkers.py")
@pytest.mark.parametrize("mutant", directed(MUTANTS).values(), ids=directed(MUTANTS))
def test_a_directed_test_finds_the_mutant_of_groups_that_is_too_rare_for_seeds(mutant: Mutant) -> None:
    assert fails_scenario(mutant)


@pytest.mark.deep
@_mutants
def test_the_simulator_finds_the_mutant_of_groups_from_any_seed_on(mutant: Mutant) -> None:
    check_found_anew(mutant, seeds_max=5_000)


@pytest.mark.slow("tests/simulation/test_group_seeds.py")
def test_the_seeds_that_find_a_mutant_find_nothing_in_groups() -> None:
    check_sound(MUTANTS, run)
