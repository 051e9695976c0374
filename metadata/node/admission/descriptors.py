"""The file descriptors of this process, and the share that each use may take.

Code that lets strangers in, or opens a file for one, asks first whether its share has room. The descriptors
above all shares belong to what must go on: the files of logs that roll, of checkpoints, of the metadata log,
and the connections that the node makes itself. So a flood of connections refuses connections, and nothing
else.
"""

import contextlib
import os
import resource
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_DESCRIPTORS: Final = "/proc/self/fd"
_FEW: Final = 4096


class DescriptorShare(Enum):
    """The uses of descriptors."""

    READERS = auto()
    """Connections of readers, and the segments that are sent to them."""
    NODE = auto()
    """Logs that are opened, connections of other nodes with what is sent to them, probes."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """The limits of a process with so many descriptors.

    Attributes:
        limit: of the process.
    """

    limit: int

    def end_of(self, share: DescriptorShare) -> int:
        """Return how many may be in use when one is taken for ``share``; what others hold counts."""
        kept = self.limit // 4 if share is DescriptorShare.READERS else self.limit // 8
        return self.limit - kept

    @property
    def strangers(self) -> int:
        """How many connections to one port may be of peers that have not introduced themselves."""
        return max(self.limit // 16, 1)

    @property
    def is_small(self) -> bool:
        """Whether a node with many streams or readers will want more."""
        return self.limit < _FEW


def budget() -> DescriptorBudget:
    """Return what this process has now."""
    return DescriptorBudget(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def may_keep(share: DescriptorShare, newest: int) -> bool:
    """Return whether ``share`` may keep the descriptor ``newest``, which was taken a moment ago.

    Where the kernel does not report how many there are (before Linux 6.2), the number of the newest stands
    for that: the kernel gives the lowest that is free.
    """
    end = budget().end_of(share)
    return newest < end and _counted() <= end


def has_room(share: DescriptorShare) -> bool:
    """Return whether ``share`` may take one more."""
    end = budget().end_of(share)
    return (_counted() or len(os.listdir(_DESCRIPTORS))) < end


def _counted() -> int:
    """Return how many descriptors this process has open; 0 where the kernel does not report it."""
    with contextlib.suppress(OSError):
        return os.stat(_DESCRIPTORS).st_size
    return 0


def raise_limit() -> None:
    """Let this process have as many descriptors as it may ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
