"""A check that is made once for each state: most calls of a disk that fail leave what another one left."""

import pickle
from collections.abc import Callable
from functools import wraps
from hashlib import blake2b
from typing import TypeVar

from tests.support.memory_disk import MemoryDisk

K = TypeVar("K")


def once_for_each_state(check: Callable[[MemoryDisk, K], None]) -> Callable[[MemoryDisk, K], None]:
    """Skip the check of a disk that passed for an equal one, with equal knowledge of what it must hold.

    The check must depend on nothing else: no clock, no chance, no numbers of calls.
    """
    passed = set[bytes]()

    @wraps(check)
    def check_if_new(disk: MemoryDisk, knowledge: K) -> None:
        state = blake2b(pickle.dumps((disk.content(), knowledge))).digest()
        if state not in passed:
            check(disk, knowledge)
            passed.add(state)

    return check_if_new
