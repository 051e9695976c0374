"""Runs the simulator; the three uses are in docs/simulators.md."""

import argparse
import importlib
import sys
import time
from collections import Counter
from types import ModuleType

import pytest

from tests.simulation import mutation
from tests.simulation.cluster.mutants import MUTANTS as CLUSTER_MUTANTS
from tests.simulation.groups.mutants import MUTANTS as GROUP_MUTANTS
from tests.simulation.mutants import MUTANTS as RAFT_MUTANTS
from tests.simulation.mutation import Mutant
from tests.simulation.replica.mutants import MUTANTS as REPLICA_MUTANTS
from tests.simulation.search import search

MUTANTS = {**RAFT_MUTANTS, **REPLICA_MUTANTS, **CLUSTER_MUTANTS, **GROUP_MUTANTS}
_SIMULATORS = {
    "raft": "run the voters of the metadata log",
    "replica": "run clusters of replicas of streams",
    "cluster": "run whole clusters: voters and replicas",
    "groups": "run consumer groups: a coordinator and its members",
}
_EXIT_FOUND = 1


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says; return 1 if a seed failed, or a mutant was not found."""
    options = _parser().parse_args(arguments)
    if options.what == "mutants":
        return _search_mutants(options)
    if options.what == "scenario":
        return _run_scenario(MUTANTS[options.name])
    if options.mutant:
        mutation.install(MUTANTS[options.mutant])
    return _run_seeds(options) if options.seed is None else _replay(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    commands = parser.add_subparsers(dest="what", required=True)
    for name, text in _SIMULATORS.items():
        simulator = commands.add_parser(name, help=text)
        simulator.add_argument("--seeds", type=int, default=1_000, help="how many to run")
        simulator.add_argument("--first", type=int, default=0, help="the first of them")
        simulator.add_argument("--finds", type=int, default=1, help="stop after so many seeds that failed")
        simulator.add_argument("--seed", type=int, help="run this one alone")
        simulator.add_argument("--trace", action="store_true", help="with --seed: a line for every event")
        deliberate = sorted(mutant.name for mutant in MUTANTS.values() if mutant.simulator == name)
        simulator.add_argument("--mutant", choices=deliberate, help="with this deliberate bug in the product")
    mutants = commands.add_parser("mutants", help="search seeds that find the deliberate bugs")
    mutants.add_argument("names", nargs="*", metavar="NAME", help="which ones; all if none is named")
    mutants.add_argument("--of", choices=_SIMULATORS, help="all that this simulator is to find")
    mutants.add_argument("--seeds", type=int, default=20_000, help="give up after so many for one mutant")
    mutants.add_argument("--finds", type=int, default=9, help="stop a mutant after so many finds")
    scenario = commands.add_parser("scenario", help="run the directed test of a deliberate bug with it")
    scenario.add_argument("name", choices=[name for name in sorted(MUTANTS) if MUTANTS[name].scenario])
    return parser


def _cluster(options: argparse.Namespace) -> ModuleType:
    """Return the module with ``run``: it imports the product, and so comes after the mutant."""
    return importlib.import_module(f"tests.simulation.{options.what}.cluster")


def _run_seeds(options: argparse.Namespace) -> int:
    run = _cluster(options).run
    begun = time.perf_counter()
    done = steps = failed = slowest = 0
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.seeds):
        outcome = run(seed)
        done, steps, counts = done + 1, steps + outcome.steps, counts + outcome.counts
        slowest = max(slowest, outcome.healing_ns)
        if outcome.problem is not None:
            failed += 1
            _write(f"seed {seed}: {outcome.problem}\n    {_command(options, seed)}\n")
            if failed == options.finds:
                break
    seconds = time.perf_counter() - begun
    rate = done / seconds
    _write(f"{done} seeds, {failed} failed, {steps} events, {seconds:.1f} s, {rate:.1f} seeds/s\n")
    _write(f"slowest healing: {slowest / 1e9:.1f} election timeouts or leases\n")
    _write("  ".join(f"{name} {count}" for name, count in sorted(counts.items())) + "\n")
    return _EXIT_FOUND if failed else 0


def _replay(options: argparse.Namespace) -> int:
    outcome = _cluster(options).run(options.seed, _write if options.trace else None)
    _write(f"seed {outcome.seed}: {outcome.problem or 'nothing found'}\n")
    return 0 if outcome.problem is None else _EXIT_FOUND


def _command(options: argparse.Namespace, seed: int) -> str:
    """Return the command that shows a failure again, event by event."""
    optimised = "" if __debug__ else " -O"
    mutant = f" --mutant {options.mutant}" if options.mutant else ""
    return f"python{optimised} -m tests.simulation {options.what}{mutant} --seed {seed} --trace"


def _search_mutants(options: argparse.Namespace) -> int:
    missed = 0
    simulated = [
        name
        for name, mutant in MUTANTS.items()
        if mutant.scenario is None and options.of in (None, mutant.simulator)
    ]
    _write("| mutant | found | median seeds to find | first seed | what found it first |\n")
    _write("|---|---|---|---|---|\n")
    for name in options.names or simulated:
        found = search(MUTANTS[name], seeds=options.seeds, finds=options.finds)
        missed += not found.finds
        _write(f"{found.row()}\n")
        sys.stdout.flush()
    return _EXIT_FOUND if missed else 0


def _run_scenario(mutant: Mutant) -> int:
    assert mutant.scenario is not None, f"{mutant.name} has none"
    mutation.install(mutant)
    return int(pytest.main([mutant.scenario, "-q", "-p", "no:cacheprovider"]))


def _write(text: str) -> None:
    sys.stdout.write(text)


if __name__ == "__main__":
    sys.exit(main())
