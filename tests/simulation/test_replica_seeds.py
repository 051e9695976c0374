"""Clusters that nobody has seen before find nothing wrong with the replication of streams."""

import pytest

from tests.simulation.replica.cluster import run
from tests.simulation.replica.swarm import FAULTS
from tests.simulation.seed_runs import DEEP, check_determinism, check_replay, counted, first_seed, run_all

_SLOW = pytest.mark.slow("tests/simulation/test_replica_seeds.py")
_FEW_SEEDS = 25
_SEEDS = 300
_DEEP_SEEDS = 20_000
_FIRST = first_seed(2)

_MISJUDGED = (9211042, 9213913, 9214711, 9217741, 9308694, 9326578, 9335471, 9343382, 43002852)
"""Clusters that did nothing wrong, and of which a checker once said that they did."""

_MENDED = (9502746,)
"""Clusters in which something of the product's was wrong."""

_STRUCK = ("kill", "stop", "pause", "resume", "wipe", "trim", "hand_over", "there_and_back")
_REPLICAS = ("reign", "truncated", "diverging", "start_over", "isr_changed", "isr_refused", "superseded")
_FENCED = ("fetch_other_leader_epoch", "fetch_old_node_epoch", "fetch_no_lease", "reconnected")
_READ_REPLICAS = ("strike_exchange_readers", "readers_changed", "readers_refused", "read_at_reader")
_DAMAGED = ("flip", "repaired", "not_repaired", "fetch_cannot_read")
_IDS = ("strike_followers_away", "stored_again")
_CLIENTS = ("acked", "read", "retried", "duplicate", "given_up", "refused", "history")


def test_a_few_new_seeds_of_replicas_keep_every_law_and_converge() -> None:
    assert run_all("replica", run, range(_FIRST, _FIRST + _FEW_SEEDS))


@pytest.mark.slow(
    "tests/simulation/test_replica_seeds.py::test_a_few_new_seeds_of_replicas_keep_every_law_and_converge"
)
def test_new_seeds_of_replicas_keep_every_law_and_converge_and_go_through_every_fault() -> None:
    outcomes = run_all("replica", run, range(_FIRST, _FIRST + _SEEDS))
    counts = counted(outcomes)
    struck = (*(f"strike_{kind}" for kind in FAULTS), *_STRUCK)
    wanted = (*struck, *_REPLICAS, *_FENCED, *_READ_REPLICAS, *_IDS, *_CLIENTS)
    assert not [kind for kind in wanted if counts[kind] < 5], counts
    assert all(counts[kind] for kind in ("stream_lost", *_DAMAGED)), counts
    empty = [outcome.seed for outcome in outcomes if outcome.committed == 0]
    assert len(empty) <= counts["stream_lost"], f"nothing was committed and no disk was lost: {empty}"


def test_seeds_that_were_misjudged_are_judged_rightly() -> None:
    run_all("replica", run, _MISJUDGED)


def test_seeds_that_found_a_fault_find_it_no_more() -> None:
    run_all("replica", run, _MENDED)


@pytest.mark.deep
def test_tens_of_thousands_of_new_seeds_of_replicas_keep_every_law_and_converge() -> None:
    assert run_all("replica", run, range(_FIRST + DEEP, _FIRST + DEEP + _DEEP_SEEDS))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=_SLOW) for seed in (1, 2, 3)])
def test_a_seed_of_replicas_is_the_same_run_in_every_process_event_by_event(seed: int) -> None:
    check_determinism("replica", seed)


@pytest.mark.slow(
    "tests/simulation/test_raft_seeds.py::test_a_failing_seed_prints_the_one_command_that_replays_it_with_a_trace"
)
def test_a_failing_seed_of_replicas_prints_the_one_command_that_replays_it_with_a_trace() -> None:
    check_replay("replica", "joins_when_heard")
