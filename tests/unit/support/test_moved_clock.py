"""A moved clock is the program's alone, and moves while the program runs."""

import time
from pathlib import Path
from subprocess import PIPE

from tests.support.forked_process import ForkedProcess
from tests.support.moved_clock import move_clock

_TELLS_TIMES = """
import sys, time
from jetstream.node.runtime.clock import SystemClock

for _ in sys.stdin:
    clock = SystemClock()
    print(clock.wall() / 1e6, time.time(), clock.monotonic() / 1e9, flush=True)
"""
_HOUR = 3_600.0


def test_the_wall_clock_is_moved_while_it_runs_and_the_monotonic_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "clock"
    move_clock(path, -5 * _HOUR)
    arguments = (str(path), "tests.support.forked_program", _TELLS_TIMES)
    with ForkedProcess("tests.support.moved_clock", arguments, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for hours in (-5, 2, 0):
            move_clock(path, hours * _HOUR)
            before, monotonic_before = time.time() + hours * _HOUR, time.monotonic()
            process.stdin.write(b"\n")
            wall, other, monotonic = map(float, process.stdout.readline().split())
            after, monotonic_after = time.time() + hours * _HOUR, time.monotonic()
            assert before - 1e-5 <= wall <= other + 1e-5 <= after + 2e-5
            assert monotonic_before <= monotonic <= monotonic_after
