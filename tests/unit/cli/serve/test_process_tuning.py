"""What a node's process does with memory that it has freed."""

import os
import platform
import subprocess
import sys

import pytest

from tests.support.commands import REPOSITORY

_USE_MEMORY = """
import resource
from jetstream.cli.serve.process_tuning import tune_allocator
tune_allocator()
def use(count):
    for _ in range(count):
        blocks = [b"x" * (512 << 10) for _ in range(6)]
use(10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(100)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told")
def test_freed_memory_is_used_again_unless_the_environment_says_otherwise() -> None:
    faults = []
    for said in ({}, {"MALLOC_TRIM_THRESHOLD_": "131072"}):
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        done = subprocess.run(
            [sys.executable, "-c", _USE_MEMORY],
            env={**clean, **said, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        faults.append(int(done.stdout))
    kept, given_back = faults
    assert kept < 1000 < given_back
