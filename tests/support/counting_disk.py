"""A disk that knows how much was read from each file, and lets a test do something in the middle of it."""

from collections import Counter
from collections.abc import Callable

from jetstream.log.disk.port import File
from tests.support.memory_disk import MemoryDisk, MemoryFile
from tests.support.memory_tree import file_at


class CountingDisk(MemoryDisk):
    """A memory disk that counts.

    Attributes:
        read_bytes: by path.
        before_read: is called once, before the next read of a file whose path ends with ``trigger``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes: Counter[str] = Counter()
        self.before_read: Callable[[], object] | None = None
        self.trigger = ""

    def open(self, path: str) -> File:
        """See `Disk.open`."""
        super().open(path).close()
        return _CountingFile(self, path)

    def meddle(self, path: str) -> None:
        """Do what a test wants to happen now."""
        if self.before_read is not None and path.endswith(self.trigger):
            meddling, self.before_read = self.before_read, None
            meddling()


class _CountingFile(MemoryFile):
    def __init__(self, disk: CountingDisk, path: str) -> None:
        super().__init__(disk, path, file_at(disk._root, path))
        self._counting, self._name = disk, path

    def read(self, position: int, length: int) -> bytes:
        """See `File.read`."""
        self._counting.meddle(self._name)
        content = super().read(position, length)
        self._counting.read_bytes[self._name] += len(content)
        return content
