"""Descriptors that are all taken."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open nothing in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        last = opened.enter_context(Path("/dev/null").open("rb")).fileno()
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, hard))
        with contextlib.suppress(OSError):
            while True:
                opened.enter_context(Path("/dev/null").open("rb"))
        yield
