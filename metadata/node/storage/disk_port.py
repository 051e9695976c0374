"""The disk as the metadata log needs it; `jetstream.log.disk.port` satisfies it without being imported.

Paths are relative and "/"-separated. Errors are typed and raised by the implementation: `DiskFull` (the
caller may undo and go on), `FsyncFailed` (what is on disk is unknown), `StorageError` for the rest.
"""

from collections.abc import Sequence
from typing import Protocol


class MetadataFile(Protocol):
    """An open file with positional reads and writes."""

    def write(self, buffers: Sequence[bytes], position: int) -> int:
        """Write all buffers from ``position``; on an error an unknown part has been written."""

    def read(self, position: int, length: int) -> bytes:
        """Return ``length`` bytes from ``position``, fewer only at the end of the file."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; not durable before `sync`."""

    def sync(self) -> None:
        """Return when contents and length are durable."""

    def close(self) -> None:
        """Close the file; makes nothing durable."""


class MetadataDisk(Protocol):
    """A directory tree that nobody else writes."""

    def open(self, path: str) -> MetadataFile:
        """Open an existing file."""

    def create(self, path: str) -> MetadataFile:
        """Create a file that must not exist; its entry is durable only after `sync_dir`."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory is there."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory."""

    def mkdir(self, path: str) -> None:
        """Create one directory; durable only after `sync_dir` of its parent."""

    def rename(self, source: str, target: str) -> None:
        """Move within one directory, replacing a target at once; durable only after `sync_dir`."""

    def unlink(self, path: str) -> None:
        """Remove a file's entry."""

    def sync_dir(self, path: str) -> None:
        """Return when the entries of a directory are durable."""
