"""The port to the disk: what the log may ask of files, and what each call promises.

Paths are relative to the disk's root, "/"-separated. Errors are typed and raised by the implementation:

* `DiskFull`: no space (ENOSPC), quota (EDQUOT) or file-size limit (EFBIG); the caller may undo and go on;
* `OutOfResources`, which is a `DiskFull`: no descriptor (EMFILE, ENFILE) or no memory (ENOMEM, ENOBUFS) to
  open, create, list, read, write, rename or remove a tree with; never from a sync;
* `FsyncFailed`: a sync failed. The state of the disk is unknown, and a second attempt proves nothing (the
  kernel may have marked the pages clean: Rebello et al., ATC'20), so the caller must give the file up;
* `StorageError`: everything else, including a path that is missing or exists already.

`OsDisk` is the real one; `MemoryDisk` is its equal for tests and simulation, with faults and power loss.
"""

from collections.abc import Sequence
from typing import Protocol

from envelope.types import Buffer, TimestampUs


class File(Protocol):
    """An open file, readable and writable at positions; there is no cursor."""

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """Write all buffers, one after the other, from ``position``; return their total length.

        Not durable before `sync`. On any error an unknown part of the bytes has been written.
        """

    def read(self, position: int, length: int) -> bytes:
        """Return ``length`` bytes from ``position``, fewer only at the end of the file."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def modified_at(self) -> TimestampUs:
        """Return when the file was last written, by the clock of the machine as it was then."""

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes; not durable before `sync`."""

    def sync(self) -> None:
        """Return after fdatasync: contents and length are durable, the directory entry may not be."""

    def drop_cache(self, position: int) -> None:
        """Ask that clean cached bytes from ``position`` on be forgotten, so that reads see the medium."""

    def close(self) -> None:
        """Close the file; further calls are errors. Closing makes nothing durable."""

    def fileno(self) -> int:
        """Return the descriptor for ``sendfile`` and friends."""


class Disk(Protocol):
    """A directory tree that nobody else writes."""

    def open(self, path: str) -> File:
        """Open an existing file."""

    def create(self, path: str) -> File:
        """Create a file that must not exist; its entry is durable only after `sync_dir`."""

    def exists(self, path: str) -> bool:
        """Return whether a file or directory is there."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def mkdir(self, path: str) -> None:
        """Create one directory that must not exist; durable only after `sync_dir` of its parent."""

    def rename(self, source: str, target: str) -> None:
        """Move a file, replacing a target file at once; durable after `sync_dir` of the target's directory.

        Until then a crash may undo it, as a whole. A file that went to another directory may be in both after
        a crash, until the directory that it left is synced too, which is to be second.
        """

    def unlink(self, path: str) -> None:
        """Remove a file's entry, if it is there; open files live on. Durable only after `sync_dir`."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all it holds, if it is there. Durable after `sync_dir` of its parent."""

    def sync_dir(self, path: str) -> None:
        """Return when the entries of a directory are durable."""

    def sync_all(self) -> bool:
        """Return True after everything written on this disk is durable; False if the system cannot say so.

        True promises that a write-back error since the disk was opened would have been raised.
        """

    def free_bytes(self) -> int:
        """Return how many bytes an unprivileged writer could still store."""

    def lock(self, path: str) -> File:
        """Create or open ``path`` and hold it exclusively until it is closed.

        Raises:
            StorageError: another process holds it.
        """


def parent_of(path: str) -> str:
    """Return the directory that holds ``path``; the root is ``""``."""
    return path.rpartition("/")[0]


def make_directories(disk: Disk, path: str) -> None:
    """Create ``path`` and its missing parents; returns when all of them are durable."""
    if not path or disk.exists(path):
        return
    parent = parent_of(path)
    make_directories(disk, parent)
    disk.mkdir(path)
    disk.sync_dir(parent)
