"""The program ``jetstream`` with a counter of Python calls, or of allocations, in its process.

``python -m benchmarks.counted_node calls node --config FILE`` runs ``jetstream node --config FILE``. What is
counted lies beside the configuration, in a file that `benchmarks.call_counts` reads while the node runs. The
counter of calls makes an object of each frame, which allocates: so there is one counter in a process.
"""

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import Final

from benchmarks.call_counts import CALLS, LIBRARY, counters_file

PROGRAM: Final = (sys.executable, "-m", "benchmarks.counted_node")
"""Followed by what to count, and by the words of the node's command line."""


def main() -> None:
    """Install the counter that the first word names, and run the command of the others."""
    counted = sys.argv.pop(1)
    library = ctypes.PyDLL(str(LIBRARY))
    directory = Path(sys.argv[-1]).parent
    problem = library.counters_open(os.fsencode(counters_file(directory, os.getpid())))
    if problem:
        raise OSError(problem, os.strerror(problem), str(directory))
    if counted == CALLS:
        threading.setprofile(lambda *_event: library.counters_count_calls())  # in its place, in each thread
        library.counters_count_calls()
    else:
        library.counters_count_allocations()
    from jetstream.__main__ import main as jetstream  # noqa: PLC0415 - what it imports is counted, too

    jetstream()


if __name__ == "__main__":
    main()
