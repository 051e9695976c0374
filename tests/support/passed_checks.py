"""A check that is made once for each state: most calls of a disk that fail leave what another one left."""

import pickle
from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from typing import ParamSpec, TypeVar

from tests.support.memory_disk import MemoryDisk

P = ParamSpec("P")
T = TypeVar("T")


def once_for_each_state(check: Callable[P, T]) -> Callable[P, T]:
    """Skip the check of a disk that passed for an equal one, with equal other arguments; return its result.

    The check must depend on nothing else: no clock, no chance, no numbers of calls.
    """
    passed: dict[bytes, T] = {}

    @wraps(check)
    def check_if_new(*args: P.args, **options: P.kwargs) -> T:
        known = [arg.content() if isinstance(arg, MemoryDisk) else arg for arg in args]
        state = blake2b(pickle.dumps((known, options))).digest()
        if state not in passed:
            passed[state] = check(*args, **options)
        return passed[state]

    return check_if_new
