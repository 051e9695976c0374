"""Files of which the kernel says that nothing is in memory: what a test cannot bring about by advice."""

import errno
import os
from collections.abc import Sequence

import pytest


def empty_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer every read that must not wait as the kernel does for pages that are not in memory.

    ``posix_fadvise`` only asks the kernel to drop them, and some kernels and file systems never do.

    Source: preadv2(2), ``RWF_NOWAIT`` and ``EAGAIN``.
    """
    preadv = os.preadv

    def read(descriptor: int, buffers: Sequence[bytearray | memoryview], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", read)
