"""The settings of the interpreter and of the C library in a process that is a node, and nothing else."""

import ctypes
import gc
import os
from typing import Final

from envelope.limits import MIB

_COLLECT_AFTER_OBJECTS: Final = 50_000

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""As malloc.h has them."""

KEPT_BYTES_MAX: Final = 64 * MIB
"""Memory that was freed and is not given back to the kernel."""

_MAPPED_BYTES_MIN: Final = 8 * MIB
"""What is larger is mapped from the kernel, and given back when it is freed: no message or group is."""


def tune_collector() -> None:
    """Let the cycle collector run seldom: a node's hot path makes many objects and no cycles.

    Objects made by the start live as long as the process, and the collector does not look at them again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)


def tune_allocator() -> None:
    """Let freed memory be used again, up to `KEPT_BYTES_MAX`; with other C libraries than glibc do nothing.

    glibc gives back the free memory at the end of the heap as soon as it is twice as much as the largest
    block that was freed: with each large message it unmaps what the next one maps anew, page by page, each
    filled with zeros by the kernel. This took a seventh of the node's CPU for large envelopes. An environment
    that configures glibc (``MALLOC_*``, ``GLIBC_TUNABLES``) has its way.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "gnu_get_libc_version"):
        c_library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        c_library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
