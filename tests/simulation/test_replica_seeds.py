"""Clusters that nobody has seen before find nothing wrong with the replication of streams.

Which seeds are new is up to the environment, as in ``test_raft_seeds``.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation.replica.cluster import Outcome, run
from tests.simulation.replica.swarm import FAULTS
from tests.tidy.source_tree import ROOT

_SEEDS = 500
_DEEP_SEEDS = 20_000
_BASE = 2_000_000_000 + int(os.environ.get("JETSTREAM_SIMULATION_SEED", "0")) * 1_000_000
_DEEP_BASE = _BASE + 500_000

_STRUCK = ("kill", "stop", "pause", "resume", "wipe", "trim", "hand_over", "there_and_back", "stream_lost")
_REPLICAS = ("reign", "truncated", "diverging", "start_over", "isr_changed", "isr_refused", "superseded")
_FENCED = ("fetch_other_leader_epoch", "fetch_old_node_epoch", "fetch_no_lease", "reconnected")
_CLIENTS = ("acked", "read", "retried", "duplicate", "given_up", "refused")


def _run(seeds: Iterable[int]) -> list[Outcome]:
    """Run every seed; the first that fails is the end, with the command that shows it again."""
    outcomes = []
    for seed in seeds:
        outcome = run(seed)
        command = f"python -m tests.simulation replica --seed {seed} --trace"
        assert outcome.problem is None, f"{outcome.problem}\n{command}"
        outcomes.append(outcome)
    return outcomes


def _simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_new_seeds_keep_every_law_and_converge_and_go_through_every_fault() -> None:
    outcomes = _run(range(_BASE, _BASE + _SEEDS))
    counts = sum((outcome.counts for outcome in outcomes), Counter[str]())
    wanted = (*(f"strike_{kind}" for kind in FAULTS), *_STRUCK, *_REPLICAS, *_FENCED, *_CLIENTS)
    assert not [kind for kind in wanted if counts[kind] < 5], counts
    empty = [outcome.seed for outcome in outcomes if outcome.committed == 0]
    assert len(empty) <= counts["stream_lost"], f"nothing was committed and no disk was lost: {empty}"


@pytest.mark.deep
def test_tens_of_thousands_of_new_seeds_keep_every_law_and_converge() -> None:
    assert len(_run(range(_DEEP_BASE, _DEEP_BASE + _DEEP_SEEDS))) == _DEEP_SEEDS


def test_a_seed_is_the_same_run_in_every_process_event_by_event() -> None:
    for seed in (1, 2, 3):
        replay = ("-m", "tests.simulation", "replica", "--seed", str(seed), "--trace")
        one, other = _simulate(*replay, hash_seed="1"), _simulate(*replay, hash_seed="2")
        assert one.stdout == other.stdout
        assert one.stdout.count("\n") > 500, one.stderr


def test_a_failing_seed_prints_the_one_command_that_replays_it_with_a_trace() -> None:
    found = _simulate("-m", "tests.simulation", "replica", "--mutant", "joins_when_heard", "--seeds", "100")
    assert found.returncode == 1, found.stdout + found.stderr
    failure, command = found.stdout.splitlines()[:2]
    python, *arguments = shlex.split(command)
    assert (python, arguments[-1]) == ("python", "--trace")
    replayed = _simulate(*arguments)
    *_, last_event, result = replayed.stdout.splitlines()
    assert result == failure
    assert last_event.endswith(failure.partition(": ")[2])
