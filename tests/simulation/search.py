"""Looks for seeds that find a mutant, in a process of its own, with the product's assertions switched off."""

import re
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.simulation.mutation import Mutant

_ROOT = Path(__file__).resolve().parents[2]
_FIND = re.compile(r"^seed (?P<seed>\d+): (?P<problem>.*)$", re.MULTILINE)
_SUMMARY = re.compile(r"^(?P<done>\d+) seeds, \d+ failed", re.MULTILINE)
_TESTED = re.compile(r"^1 (passed|failed) in ", re.MULTILINE)
_PROBLEM_LETTERS_MAX = 60


@dataclass(frozen=True, slots=True)
class Found:
    """Which seeds found a mutant."""

    mutant: Mutant
    done: int
    """How many seeds were run, from the mutant's first one."""
    first: int
    finds: tuple[tuple[int, str], ...]
    """Seed and problem."""

    def median_seeds(self) -> float:
        """Return how many seeds it takes from one find to the next; half the time it takes fewer."""
        seeds = [self.first - 1, *(seed for seed, _ in self.finds)]
        return median(later - earlier for earlier, later in pairwise(seeds))

    def row(self) -> str:
        """Return a line of the table in docs/simulators.md."""
        if not self.finds:
            return f"| `{self.mutant.name}` | 0 in {self.done} | - | - | - |"
        seed, problem = self.finds[0]
        what = problem.partition(": ")[2][:_PROBLEM_LETTERS_MAX].replace("|", " ")
        found = f"{len(self.finds)} in {self.done}"
        return f"| `{self.mutant.name}` | {found} | {self.median_seeds():.0f} | {seed} | {what} |"


def fails_scenario(mutant: Mutant) -> bool:
    """Run ``mutant``'s directed test with the bug in the product; tell whether the test fails.

    Raises:
        RuntimeError: the test did not run.
    """
    command = [sys.executable, "-m", "tests.simulation", "scenario", mutant.name]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1) or not _TESTED.search(result.stdout):
        raise RuntimeError(f"{command}:\n{result.stdout}{result.stderr}")
    return result.returncode == 1


def search(mutant: Mutant, *, seeds: int, finds: int, first: int = 0) -> Found:
    """Run ``mutant`` with ``seeds`` seeds from ``first`` on, until ``finds`` of them have failed.

    Raises:
        RuntimeError: the simulator itself did not run; its output is the text.
    """
    numbers = {"--first": first, "--seeds": seeds, "--finds": finds}
    arguments = [str(part) for pair in numbers.items() for part in pair]
    simulate = [sys.executable, "-O", "-m", "tests.simulation", mutant.simulator]
    command = [*simulate, "--mutant", mutant.name, *arguments]
    result = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    summary = _SUMMARY.search(result.stdout)
    if summary is None:
        raise RuntimeError(f"{command}:\n{result.stdout}{result.stderr}")
    found = tuple((int(match["seed"]), match["problem"]) for match in _FIND.finditer(result.stdout))
    return Found(mutant, int(summary["done"]), first, found)
