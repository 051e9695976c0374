"""Counters read from the kernel, of this very process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import machine
from benchmarks.process_stats import ProcessSample, machine_busy_seconds


def test_a_process_costs_time_and_holds_memory() -> None:
    sample = ProcessSample.of(os.getpid())

    assert sample.cpu_seconds > 0
    assert sample.resident_bytes >= sample.anonymous_bytes > 0
    assert sample.cpu_seconds <= machine_busy_seconds()


def test_the_mount_of_a_directory_is_the_deepest_that_holds_it() -> None:
    assert machine.mount_of(Path("/proc/self"))[1] == "proc"
    assert machine.mount_of(Path("/nowhere/at/all"))[1] == machine.mount_of(Path("/"))[1]


def test_an_ended_process_has_no_sample() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, its entry is still there
        with pytest.raises(ProcessLookupError):
            ProcessSample.of(process.pid)
    with pytest.raises(ProcessLookupError):
        ProcessSample.of(process.pid)
