"""A disk whose syncs take as long as a test wants."""

import contextlib
import threading
from collections.abc import Iterator

from jetstream.log.segments.segment import SEGMENT_SUFFIX
from tests.support.memory_disk import Fault, MemoryDisk


class HeldDisk(MemoryDisk):
    """A memory disk whose syncs of segments wait until they are let go; nobody waits for ever.

    Attributes:
        let_go: set, syncs go on.
        is_held: a sync waits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()
        self.let_go.set()
        self.is_held = False

    @contextlib.contextmanager
    def call(self, operation: str, path: str) -> Iterator[Fault | None]:
        """See `MemoryDisk.call`."""
        if operation == "sync" and path.endswith(SEGMENT_SUFFIX):
            self.is_held = not self.let_go.is_set()
            assert self.let_go.wait(10), "nobody was told before the sync"
            self.is_held = False
        with super().call(operation, path) as fault:
            yield fault
