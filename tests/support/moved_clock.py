"""A program of ours whose wall clock is wrong: the file that says by how much, its module, and its arguments.

Eight bytes of nanoseconds, which may change at any time: processes that are started with the same file have
the same clock. Nothing else is moved: the monotonic clock, and the kernel's times, are those of the machine.
"""

import mmap
import runpy
import sys
import time
from pathlib import Path
from typing import Final

_BYTES: Final = 8


def move_clock(path: Path, ahead_s: float) -> None:
    """Let clocks that go by this file be ahead by so many seconds; negative: behind."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(round(ahead_s * 1e9).to_bytes(_BYTES, sys.byteorder, signed=True))


def main() -> None:
    """Move the clock, then run the module as if it had been started by itself."""
    path, *sys.argv = sys.argv[1:]
    with Path(path).open("rb") as file:
        ahead_ns = memoryview(mmap.mmap(file.fileno(), _BYTES, access=mmap.ACCESS_READ)).cast("q")
    real_ns = time.time_ns
    vars(time).update(
        time_ns=lambda: real_ns() + ahead_ns[0],
        time=lambda: (real_ns() + ahead_ns[0]) / 1e9,
    )
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
