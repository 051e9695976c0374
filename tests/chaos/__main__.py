"""Strikes a cluster of real processes for a while, and judges what its clients saw; see docs/chaos.md."""

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from tests.chaos.chaos_run import ChaosRun, Options, Verdict
from tests.chaos.faults import KINDS

_EXIT_FOUND = 1


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says; return 1 if something is wrong."""
    given = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    options = Options(given.nodes, seed, given.seconds, kinds=tuple(given.faults or KINDS))
    directory = given.keep or Path(tempfile.mkdtemp(prefix="chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        _say(f"{directory} is not empty")
        return 2
    if "disk" in options.kinds and os.geteuid() != 0:
        _say("NO FULL DISKS: only root can mount a small one; every fault of that kind is skipped")
    faults = f" --faults {' '.join(given.faults)}" if given.faults else ""
    _say(f"python -m tests.chaos --seconds {given.seconds:g} --nodes {given.nodes} --seed {seed}{faults}")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        verdict = runner.run(ChaosRun(options, directory, _say).run())
    _tell(verdict)
    if verdict.problems or given.keep:
        _say(f"history, logs and files are in {directory}")
    else:
        shutil.rmtree(directory)
    return _EXIT_FOUND if verdict.problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=3)
    parser.add_argument("--seed", type=int, help="decides all faults; drawn if it is not given")
    parser.add_argument("--faults", nargs="*", choices=KINDS, help="only these")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="empty; keeps everything, found or not")
    return parser


def _tell(verdict: Verdict) -> None:
    _say("  ".join(f"{name} {count}" for name, count in verdict.counts.items()))
    _say("faults: " + "  ".join(f"{kind} {count}" for kind, count in sorted(verdict.faults.items())))
    _say("refusals: " + "  ".join(f"{code} {count}" for code, count in sorted(verdict.refusals.items())))
    _say("group: " + "  ".join(f"{name} {count}" for name, count in verdict.group.items()))
    _say(f"longest time without an ack: {verdict.silence_s:.1f} s")
    for problem in verdict.problems:
        _say(f"WRONG: {problem}")
    _say(f"verdict: {len(verdict.problems)} problems" if verdict.problems else "verdict: nothing is wrong")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
