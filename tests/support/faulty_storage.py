"""The real metadata storage behind a disk that is full, or fails, when a test says so."""

from collections.abc import Sequence

from envelope.errors import DiskFull, FsyncFailed
from metadata.node.storage.port import Storage, Stored
from metadata.raft.state import Entry, HardState, Snapshot


class FaultyStorage:
    """A `Storage` before another one."""

    def __init__(self, storage: Storage, full_for: int = 0) -> None:
        """Refuse the first ``full_for`` appends."""
        self._storage = storage
        self._full_for = full_for
        self.full = False
        """Whether every append is refused."""
        self.broken = False
        """Whether every append fails for good."""
        self.refused = 0

    def load(self) -> Stored:
        return self._storage.load()

    def append(self, entries: Sequence[Entry], hard_state: HardState | None = None) -> None:
        if self.broken:
            raise FsyncFailed("input/output error")
        if self.full or self.refused < self._full_for:
            self.refused += 1
            raise DiskFull("no space left on device")
        self._storage.append(entries, hard_state)

    def compact(self, snapshot: Snapshot) -> None:
        self._storage.compact(snapshot)

    @property
    def log_bytes(self) -> int:
        return self._storage.log_bytes

    def close(self) -> None:
        self._storage.close()
