"""The settings of the interpreter in a process in which Spark runs tasks."""

import functools
import gc
from collections.abc import Mapping
from typing import Any


@functools.cache
def settle_process() -> None:
    """Keep what has been imported out of the garbage collections that Spark asks for after each task.

    It is not garbage before the process ends, and to look at all of it takes some 50 ms. Only the first call
    does anything.
    """
    gc.collect()
    gc.freeze()


class SettlesWhereItArrives:
    """Of what Spark pickles: the process that gets it is settled."""

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        settle_process()
        vars(self).update(state)
