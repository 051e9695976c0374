"""Whole clusters that nobody has seen before find nothing wrong with voters and replicas together."""

import pytest

from tests.simulation.cluster.cluster import run
from tests.simulation.cluster.swarm import FAULTS
from tests.simulation.seed_runs import DEEP, check_determinism, check_replay, counted, first_seed, run_all

_SLOW = pytest.mark.slow("tests/simulation/test_cluster_seeds.py")
_FEW_SEEDS = 10
_SEEDS = 120
_DEEP_SEEDS = 5_000
_FIRST = first_seed(3)

_MISJUDGED = (9604574,)
"""Clusters that did nothing wrong, and of which a checker once said that they did."""

_FLOODED = 72006727
"""A metadata log that took 50 ms for an entry never caught up with the repeats of one proposal."""

_STRUCK = ("kill", "stop", "pause", "resume", "wipe", "sync_failed", "crash_after_write", "strike_reassign")
_ALONE = ("cut_all", "cut_raft_alone", "cut_saying_alone", "cut_replication_alone")
_METADATA = ("elected", "steward", "compacted", "restored", "truncated", "command_refused", "changed")
_VOTERS = ("voters_chosen", "more_voters", "fewer_voters")
_REPLICAS = ("reign", "diverging", "start_over", "fetch_other_leader_epoch", "fetch_no_lease", "removed")
_CLIENTS = ("acked", "read", "retried", "duplicate", "given_up", "refused", "history")


def test_a_few_new_seeds_of_clusters_keep_every_law_and_converge() -> None:
    assert run_all("cluster", run, range(_FIRST, _FIRST + _FEW_SEEDS))


@pytest.mark.slow(
    "tests/simulation/test_cluster_seeds.py::test_a_few_new_seeds_of_clusters_keep_every_law_and_converge"
)
def test_new_seeds_of_clusters_keep_every_law_and_converge_and_go_through_every_fault() -> None:
    outcomes = run_all("cluster", run, range(_FIRST, _FIRST + _SEEDS))
    counts = counted(outcomes)
    named = (*_STRUCK, *_ALONE, *_METADATA, *_VOTERS, *_REPLICAS, *_CLIENTS)
    wanted = (*(f"strike_{kind}" for kind in FAULTS), *named)
    assert not [kind for kind in wanted if counts[kind] < 5], counts
    empty = [outcome.seed for outcome in outcomes if outcome.committed == 0]
    assert len(empty) <= counts["stream_lost"], f"nothing was committed and no disk was lost: {empty}"


def test_seeds_that_were_misjudged_are_judged_rightly() -> None:
    run_all("cluster", run, _MISJUDGED)


def test_a_slow_metadata_log_is_not_flooded_with_repeats() -> None:
    assert run_all("cluster", run, (_FLOODED,))


@pytest.mark.deep
def test_thousands_of_new_seeds_of_clusters_keep_every_law_and_converge() -> None:
    assert run_all("cluster", run, range(_FIRST + DEEP, _FIRST + DEEP + _DEEP_SEEDS))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=_SLOW) for seed in (1, 2, 3)])
def test_a_seed_of_a_cluster_is_the_same_run_in_every_process_event_by_event(seed: int) -> None:
    check_determinism("cluster", seed)


@pytest.mark.slow(
    "tests/simulation/test_raft_seeds.py::test_a_failing_seed_prints_the_one_command_that_replays_it_with_a_trace"
)
def test_a_failing_seed_of_clusters_prints_the_one_command_that_replays_it_with_a_trace() -> None:
    check_replay("cluster", "retry_decided_on_again")
