"""What the tests of every simulator do with seeds.

Which seeds are new is up to the environment: ``JETSTREAM_SIMULATION_SEED`` (a number, 0 if it is not set)
moves the whole range, so that a scheduled run draws other worlds every time.
"""

import os
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from tests.simulation.outcome import Outcome
from tests.tidy.source_tree import ROOT

DEEP: Final = 500_000
"""How far behind the seeds of the test command those of the deep run begin."""


def first_seed(simulator: int) -> int:
    """Return the first new seed; every simulator, by its number, has a range of its own."""
    return simulator * 1_000_000_000 + int(os.environ.get("JETSTREAM_SIMULATION_SEED", "0")) * 1_000_000


def run_all(simulator: str, run: Callable[[int], Outcome], seeds: Iterable[int]) -> list[Outcome]:
    """Run every seed; the first that fails is the end, with the command that shows it again."""
    outcomes = []
    for seed in seeds:
        outcome = run(seed)
        command = f"python -m tests.simulation {simulator} --seed {seed} --trace"
        assert outcome.problem is None, f"{outcome.problem}\n{command}"
        outcomes.append(outcome)
    return outcomes


def counted(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Return how often everything happened."""
    return sum((outcome.counts for outcome in outcomes), Counter[str]())


def simulate(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run ``python`` with these arguments in a process of its own."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def check_determinism(simulator: str, seed: int) -> None:
    """Assert that a long run is the same in two processes, event by event."""
    replay = ("-m", "tests.simulation", simulator, "--seed", str(seed), "--trace")
    one, other = simulate(*replay, hash_seed="1"), simulate(*replay, hash_seed="2")
    assert one.stdout == other.stdout
    assert one.stdout.count("\n") > 500, one.stderr


def check_replay(simulator: str, mutant: str, seeds: int = 100) -> None:
    """Assert that the command printed for a failure, which ``mutant`` causes, shows the same failure."""
    found = simulate("-m", "tests.simulation", simulator, "--mutant", mutant, "--seeds", str(seeds))
    assert found.returncode == 1, found.stdout + found.stderr
    failure, command = found.stdout.splitlines()[:2]
    python, *arguments = shlex.split(command)
    assert (python, arguments[-1]) == ("python", "--trace")
    replayed = simulate(*arguments)
    *_, last_event, result = replayed.stdout.splitlines()
    assert result == failure
    assert last_event.endswith(failure.partition(": ")[2])
