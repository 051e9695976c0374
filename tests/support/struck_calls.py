"""Which calls of a run are struck: all that a fault does something to, or some, others in each test."""

from collections.abc import Sequence
from typing import Final

from tests.support.memory_disk import FaultKind

_KINDS: Final = tuple(FaultKind)
_SPACE: Final = frozenset({"write", "create", "mkdir", "rename"})
_SYNCS: Final = frozenset({"sync", "sync_dir", "sync_all"})
_STRUCK: Final = {
    FaultKind.DISK_FULL: _SPACE,
    FaultKind.SHORT_WRITE: _SPACE,
    FaultKind.EXHAUSTED: _SPACE | {"open", "read", "listdir"},
    FaultKind.SYNC_ERROR: _SYNCS,
}
"""The operations that a fault strikes, where it is not all."""


def struck_calls(trace: Sequence[str], kind: FaultKind, step: int = 1, case: int = 0) -> list[int]:
    """Return the numbers of the calls in ``trace`` that a fault of ``kind`` strikes.

    It is each ``step``-th of them, begun so that kinds, and cases of different numbers, strike different
    ones. An odd step meets each number of bytes that are kept, where four take turns.
    """
    numbers = [
        number
        for number, call in enumerate(trace, 1)
        if (operation := call.split()[0]) in _STRUCK.get(kind, (operation,))
    ]
    return numbers[(_KINDS.index(kind) + case) % step :: step]
