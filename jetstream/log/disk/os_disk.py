"""The real disk: a directory of a Linux file system."""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from envelope.errors import DiskFull, FsyncFailed, OutOfResources, StorageError
from envelope.types import Buffer, TimestampUs
from jetstream.log.disk.port import File

_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS))
_REFUSED_WHOLE: Final = frozenset(("open", "create", "list", "read", "write", "rename", "clear"))
"""Calls that have done nothing, or nothing that their caller does not undo, when the process or the kernel is
exhausted. The other calls need neither a descriptor nor much memory, and their callers have no way back."""
_READ_ONLY: Final = frozenset((errno.EACCES, errno.EROFS, errno.EPERM))
_IOV_MAX: Final = 1024
_FILE_MODE: Final = 0o640
_DIRECTORY_MODE: Final = 0o750
_SYNCFS_REPORTS_SINCE: Final = (5, 8)
"""Linux release from which ``syncfs`` reports write-back errors (commit 735e4ae5ba28)."""


class OsFile:
    """A file descriptor with positional I/O; short transfers are continued, errors are typed."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, descriptor: int, path: str) -> None:
        """Own ``descriptor``; ``path`` is for messages."""
        self._descriptor = descriptor
        self._path = path

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """See `File.write`: one ``pwritev`` unless the kernel stops short."""
        total = sum(map(len, buffers))
        rest: Sequence[Buffer] = buffers
        done = 0
        try:
            while done < total:
                wrote = os.pwritev(self._descriptor, rest[:_IOV_MAX], position + done)
                done += wrote
                if done < total:
                    rest = _after(rest, wrote)
        except OSError as error:
            raise _typed(error, "write", self._path) from error
        return total

    def read(self, position: int, length: int) -> bytes:
        """See `File.read`."""
        try:
            data = os.pread(self._descriptor, length, position)
            while len(data) < length:
                more = os.pread(self._descriptor, length - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise _typed(error, "read", self._path) from error
        return data

    def size(self) -> int:
        """See `File.size`."""
        with _mapped("stat", self._path):
            return os.fstat(self._descriptor).st_size

    def modified_at(self) -> TimestampUs:
        """See `File.modified_at`."""
        with _mapped("stat", self._path):
            return TimestampUs(os.fstat(self._descriptor).st_mtime_ns // 1000)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        with _mapped("truncate", self._path):
            os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """See `File.sync`."""
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise FsyncFailed(f"fdatasync of {self._path} failed: {error}") from error

    def drop_cache(self, position: int) -> None:
        """See `File.drop_cache`."""
        # The kernel keeps a page that is named in part, so the page that ``position`` is in is named whole.
        start = position - position % mmap.PAGESIZE
        with _mapped("drop the cache of", self._path):
            os.posix_fadvise(self._descriptor, start, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """See `File.close`."""
        with _mapped("close", self._path):
            os.close(self._descriptor)

    def fileno(self) -> int:
        """See `File.fileno`."""
        return self._descriptor


class OsDisk:
    """A directory tree under one root; all paths are relative to it, in errors too: clients hear those."""

    def __init__(self, root: Path) -> None:
        """Create the root if needed and keep it open from now on, so that `sync_all` sees every error."""
        self._root = root
        with _mapped("create", str(root)):
            root.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._syncfs = _load_syncfs()

    def close(self) -> None:
        """Close the root; files opened from it live on."""
        os.close(self._descriptor)

    def open(self, path: str) -> File:
        """See `Disk.open`; a file that may only be read is opened for that, to be inspected."""
        try:
            return self._open(path, os.O_RDWR)
        except StorageError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _READ_ONLY:
                raise
            return self._open(path, os.O_RDONLY)

    def create(self, path: str) -> File:
        """See `Disk.create`."""
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        with _mapped("stat", path):
            return self._at(path).exists()

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        with _mapped("list", path):
            return sorted(os.listdir(self._at(path)))

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        with _mapped("create", path):
            self._at(path).mkdir(mode=_DIRECTORY_MODE)

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        with _mapped("rename", source):
            self._at(source).rename(self._at(target))

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        with _mapped("remove", path):
            self._at(path).unlink(missing_ok=True)

    def remove_tree(self, path: str) -> None:
        """See `Disk.remove_tree`."""
        with _mapped("clear", path):
            while self._at(path).exists():
                with contextlib.suppress(FileNotFoundError):  # somebody else has removed a part of it
                    shutil.rmtree(self._at(path))

    def sync_dir(self, path: str) -> None:
        """See `Disk.sync_dir`; without a descriptor for the directory the whole file system is synced."""
        try:
            with _mapped("open", path):
                descriptor = os.open(self._at(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OutOfResources as error:
            if not self.sync_all():
                raise FsyncFailed(f"directory {path} is not synced: {error}") from error
            return
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise FsyncFailed(f"fsync of directory {path} failed: {error}") from error
        finally:
            os.close(descriptor)

    def sync_all(self) -> bool:
        """See `Disk.sync_all`: ``syncfs`` where the kernel reports its errors."""
        if self._syncfs is None:
            return False
        if self._syncfs(self._descriptor) != 0:
            code = ctypes.get_errno()
            raise FsyncFailed(f"syncfs of the data directory failed: {os.strerror(code)}")
        return True

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        with _mapped("stat", "the data directory"):
            found = os.fstatvfs(self._descriptor)
        return found.f_bavail * found.f_frsize

    def lock(self, path: str) -> File:
        """See `Disk.lock`: ``flock``, released by the kernel when the process ends."""
        file = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise StorageError(f"{self._at(path)} is held by another process") from error
        return file

    def _at(self, path: str) -> Path:
        return self._root / path

    def _open(self, path: str, flags: int) -> OsFile:
        with _mapped("open", path):
            descriptor = os.open(self._at(path), flags | os.O_CLOEXEC, _FILE_MODE)
        return OsFile(descriptor, path)


@contextlib.contextmanager
def _mapped(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _typed(error, action, path) from error


def _typed(error: OSError, action: str, path: str) -> DiskFull | StorageError:
    if error.errno in _FULL:
        return DiskFull(f"cannot {action} {path}: {error.strerror}")
    if error.errno in _EXHAUSTED and action in _REFUSED_WHOLE:
        return OutOfResources(f"cannot {action} {path}: {error.strerror}")
    return StorageError(f"cannot {action} {path}: {error.strerror}")


def _after(buffers: Sequence[Buffer], skip: int) -> list[Buffer]:
    for index, buffer in enumerate(buffers):
        if skip < len(buffer):
            return [memoryview(buffer)[skip:], *buffers[index + 1 :]]
        skip -= len(buffer)
    return []


def _load_syncfs() -> Callable[[int], int] | None:
    """Return the C library's ``syncfs``, None where the kernel would not report errors through it."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if release < _SYNCFS_REPORTS_SINCE:
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int,)
    function.restype = ctypes.c_int
    syncfs: Callable[[int], int] = function
    return syncfs
