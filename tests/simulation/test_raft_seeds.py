"""Worlds that nobody has seen before find nothing wrong with the Raft core."""

import pytest

from tests.simulation.raft.cluster import run
from tests.simulation.raft.swarm import FAULTS
from tests.simulation.seed_runs import DEEP, check_determinism, check_replay, counted, first_seed, run_all

_SLOW = pytest.mark.slow("tests/simulation/test_raft_seeds.py")
_FEW_SEEDS = 60
_SEEDS = 600
_DEEP_SEEDS = 20_000
_FIRST = first_seed(1)

_NETWORK = ("isolate_one", "isolate_leader", "halves", "one_way", "ring", "bridge", "clog", "disconnect")
_PROCESSES = ("kill", "pause", "resume", "clock_jump", "crash_after_write", "sync_failed", "slow_disk")
_VOTERS = ("elected", "truncated", "compacted", "restored", "transfer")
_CLIENTS = ("written", "read", "retried", "refused_not_leader", "refused_handing_over", "refused_overloaded")


def test_a_few_new_seeds_keep_every_law_and_converge() -> None:
    assert run_all("raft", run, range(_FIRST, _FIRST + _FEW_SEEDS))


@pytest.mark.slow("tests/simulation/test_raft_seeds.py::test_a_few_new_seeds_keep_every_law_and_converge")
def test_new_seeds_keep_every_law_and_converge_and_go_through_every_fault() -> None:
    outcomes = run_all("raft", run, range(_FIRST, _FIRST + _SEEDS))
    counts = counted(outcomes)
    wanted = (*_NETWORK, *_PROCESSES, *_VOTERS, *_CLIENTS)
    assert not [kind for kind in wanted if counts[kind] < 10], counts
    assert {kind.partition("_")[0] for kind in FAULTS} <= {kind.partition("_")[0] for kind in wanted}
    assert min(outcome.committed for outcome in outcomes) >= 2, "nothing was written in some world"


@pytest.mark.deep
def test_tens_of_thousands_of_new_seeds_keep_every_law_and_converge() -> None:
    assert run_all("raft", run, range(_FIRST + DEEP, _FIRST + DEEP + _DEEP_SEEDS))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=_SLOW), pytest.param(3, marks=_SLOW)])
def test_a_seed_is_the_same_run_in_every_process_event_by_event(seed: int) -> None:
    check_determinism("raft", seed)


def test_a_failing_seed_prints_the_one_command_that_replays_it_with_a_trace() -> None:
    check_replay("raft", "double_vote")
