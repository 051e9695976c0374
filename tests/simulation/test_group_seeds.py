"""Groups that nobody has seen before keep every law, and every partition is owned again."""

import pytest

from tests.simulation.groups.cluster import run
from tests.simulation.groups.swarm import FAULTS
from tests.simulation.seed_runs import DEEP, check_determinism, check_replay, counted, first_seed, run_all

_SLOW = pytest.mark.slow("tests/simulation/test_group_seeds.py")
_FEW_SEEDS = 12
_SEEDS = 80
_DEEP_SEEDS = 10_000
_FIRST = first_seed(4)

_STRUCK = ("failed_over", "deposed", "found_out", "durable_unsaid", "stubborn", "silent", "held_on", "forced")
_REFUSED = (
    *("refused_member_fenced", "refused_instance_fenced", "refused_illegal_generation"),
    *("refused_partition_not_owned", "refused_not_enough_replicas", "refused_cursor_behind", "writerefused"),
    *("not_leader", "unavailable"),
)
_SAID = (
    *(
        "said_assignment",
        "said_cursorscommitted",
        "said_cursorsfound",
        "said_done",
        "said_heartbeatanswer",
        "said_left",
    ),
    "commitsuperseded",
)


def test_a_few_new_seeds_of_groups_keep_every_law_and_come_to_rest() -> None:
    assert run_all("groups", run, range(_FIRST, _FIRST + _FEW_SEEDS))


@pytest.mark.slow(
    "tests/simulation/test_group_seeds.py::test_a_few_new_seeds_of_groups_keep_every_law_and_come_to_rest"
)
def test_new_seeds_of_groups_keep_every_law_and_come_to_rest_and_go_through_every_fault() -> None:
    outcomes = run_all("groups", run, range(_FIRST, _FIRST + _SEEDS))
    counts = counted(outcomes)
    wanted = (*(f"strike_{kind}" for kind in FAULTS), *_STRUCK, *_REFUSED, *_SAID)
    assert not [kind for kind in wanted if not counts[kind]], counts


@pytest.mark.deep
def test_thousands_of_new_seeds_of_groups_keep_every_law_and_come_to_rest() -> None:
    assert run_all("groups", run, range(_FIRST + DEEP, _FIRST + DEEP + _DEEP_SEEDS))


@pytest.mark.parametrize("seed", [3, pytest.param(5, marks=_SLOW), pytest.param(10, marks=_SLOW)])
def test_a_seed_of_groups_is_the_same_run_in_every_process_event_by_event(seed: int) -> None:
    check_determinism("groups", seed)


def test_a_failing_seed_of_groups_prints_the_one_command_that_replays_it_with_a_trace() -> None:
    check_replay("groups", "granted_before_it_was_given_up")
