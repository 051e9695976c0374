"""Worlds that nobody has seen before find nothing wrong with the Raft core.

Which seeds are new is up to the environment: ``JETSTREAM_SIMULATION_SEED`` (a number, 0 if it is not set)
moves the whole range, so that a scheduled run draws other worlds every time.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

from tests.simulation.raft.cluster import Outcome, run
from tests.simulation.raft.swarm import FAULTS
from tests.tidy.source_tree import ROOT

_SEEDS = 1_000
_DEEP_SEEDS = 20_000
_BASE = 1_000_000_000 + int(os.environ.get("JETSTREAM_SIMULATION_SEED", "0")) * 1_000_000
_DEEP_BASE = _BASE + 500_000

_NETWORK = ("isolate_one", "isolate_leader", "halves", "one_way", "ring", "bridge", "clog", "disconnect")
_PROCESSES = ("kill", "pause", "resume", "clock_jump", "crash_after_write", "sync_failed", "slow_disk")
_VOTERS = ("elected", "truncated", "compacted", "restored", "transfer")
_CLIENTS = ("written", "read", "retried", "refused_not_leader", "refused_handing_over", "refused_overloaded")


def _run(seeds: Iterable[int]) -> list[Outcome]:
    """Run every seed; the first that fails is the end, with the command that shows it again."""
    outcomes = []
    for seed in seeds:
        outcome = run(seed)
        command = f"python -m tests.simulation raft --seed {seed} --trace"
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
    wanted = (*_NETWORK, *_PROCESSES, *_VOTERS, *_CLIENTS)
    assert not [kind for kind in wanted if counts[kind] < 10], counts
    assert {kind.partition("_")[0] for kind in FAULTS} <= {kind.partition("_")[0] for kind in wanted}
    assert min(outcome.commit for outcome in outcomes) >= 2, "nothing was written in some world"


@pytest.mark.deep
def test_tens_of_thousands_of_new_seeds_keep_every_law_and_converge() -> None:
    assert len(_run(range(_DEEP_BASE, _DEEP_BASE + _DEEP_SEEDS))) == _DEEP_SEEDS


def test_a_seed_is_the_same_run_in_every_process_event_by_event() -> None:
    for seed in (1, 2, 3):
        replay = ("-m", "tests.simulation", "raft", "--seed", str(seed), "--trace")
        one, other = _simulate(*replay, hash_seed="1"), _simulate(*replay, hash_seed="2")
        assert one.stdout == other.stdout
        assert one.stdout.count("\n") > 500, one.stderr


def test_a_failing_seed_prints_the_one_command_that_replays_it_with_a_trace() -> None:
    found = _simulate("-m", "tests.simulation", "raft", "--mutant", "double_vote", "--seeds", "100")
    assert found.returncode == 1, found.stdout + found.stderr
    failure, command = found.stdout.splitlines()[:2]
    python, *arguments = shlex.split(command)
    assert (python, arguments[-1]) == ("python", "--trace")
    replayed = _simulate(*arguments)
    *_, last_event, result = replayed.stdout.splitlines()
    assert result == failure
    assert last_event.endswith(failure.partition(": ")[2])
