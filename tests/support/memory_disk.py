"""A disk in memory with the real one's promises and no more, and with faults on request.

Theory of operation: every file has a cached and a durable content, every directory cached and durable
entries, and a list of what lies between the two. A sync moves everything over. `power_loss` returns the
disk that the next start would find: what was durable, plus whatever part of the rest a `Survival` decides,
because nothing orders what was not synced. A sync that fails leaves the cached content visible but never
writes it: a later, successful sync does not save it, and `File.drop_cache` shows what the medium holds.

Calls are numbered from 1; a `Fault` strikes the call of its number.

Source: FoundationDB's ``AsyncFileNonDurable``; Rebello et al. (ATC'20) on what kernels do after EIO.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from envelope.errors import DiskFull, FsyncFailed, OutOfResources, StorageError
from envelope.types import Buffer, TimestampUs
from jetstream.log.disk.port import File
from tests.support.memory_tree import (
    DirectoryNode,
    FileNode,
    PowerLoss,
    Survival,
    all_nodes,
    directory_at,
    everything_survives,
    file_at,
    find,
    move_entry,
    nothing_survives,
    parent_at,
    random_survival,
)

__all__ = [
    "Fault",
    "FaultKind",
    "MemoryDisk",
    "MemoryFile",
    "PowerLostError",
    "Survival",
    "everything_survives",
    "nothing_survives",
    "random_survival",
]


class FaultKind(Enum):
    """What happens to a call."""

    DISK_FULL = "disk full"
    """A call that needs space stores nothing and raises `DiskFull`; others are not struck."""
    SHORT_WRITE = "short write"
    """As disk full, but a write stores its first ``bytes_kept`` bytes."""
    EXHAUSTED = "exhausted"
    """A call for which there may be no descriptor or no memory raises `OutOfResources` and does nothing, but
    that a write stores its first ``bytes_kept`` bytes; others are not struck."""
    IO_ERROR = "I/O error"
    """`StorageError`, or `FsyncFailed` from a sync, whose bytes never become durable; a write stores
    its first ``bytes_kept`` bytes."""
    SYNC_ERROR = "sync error"
    """As I/O error, but only syncs are struck."""
    POWER_LOSS = "power loss"
    """The call does not happen and raises `PowerLostError`, and so does every later one; a write stores
    its first ``bytes_kept`` bytes, unsynced."""
    POWER_LOSS_AFTER = "power loss after"
    """The call happens, then as above."""


_STOPPING_WRITES: Final = frozenset(
    (
        FaultKind.DISK_FULL,
        FaultKind.SHORT_WRITE,
        FaultKind.EXHAUSTED,
        FaultKind.IO_ERROR,
        FaultKind.POWER_LOSS,
    )
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: FaultKind
    bytes_kept: int = 0


class PowerLostError(Exception):
    """The machine is off; only `MemoryDisk.power_loss` goes on from here. Deliberately not a typed error."""


class MemoryFile:
    """An open file of a `MemoryDisk`."""

    __slots__ = ("_disk", "_lock", "_node", "_path")

    def __init__(self, disk: "MemoryDisk", path: str, node: FileNode, lock: str | None = None) -> None:
        """Open ``node``; closing gives ``lock`` free."""
        self._disk = disk
        self._path = path
        self._node: FileNode | None = node
        self._lock = lock
        disk.open_files += 1

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        """See `File.write`."""
        data = b"".join(bytes(buffer) for buffer in buffers)
        node = self._opened()
        with self._disk.call("write", self._path) as fault:
            fitting = self._disk.fitting(position + len(data) - len(node.cached))
            kept = len(data) - max(position + len(data) - len(node.cached) - fitting, 0)
            if fault is not None and fault.kind in _STOPPING_WRITES:
                kept = min(kept, fault.bytes_kept)
            if kept:
                node.write(position, data[:kept])
                node.modified_at = self._disk.wall_us
            _strike(fault, self._path, needs_space=True)
            if kept < len(data):
                raise DiskFull(f"cannot write {self._path}: the disk is full")
        return len(data)

    def read(self, position: int, length: int) -> bytes:
        """See `File.read`."""
        node = self._opened()
        with self._disk.call("read", self._path) as fault:
            _strike(fault, self._path, may_exhaust=True)
            if min(position, length) < 0:
                raise StorageError(
                    f"read {self._path}: invalid argument"
                )  # as the kernel says; slices would not
            return bytes(node.cached[position : position + length])

    def size(self) -> int:
        """See `File.size`."""
        return len(self._opened().cached)

    def modified_at(self) -> TimestampUs:
        """See `File.modified_at`."""
        return TimestampUs(self._opened().modified_at)

    def truncate(self, size: int) -> None:
        """See `File.truncate`."""
        node = self._opened()
        with self._disk.call("truncate", self._path) as fault:
            _strike(fault, self._path)
            node.truncate(size)

    def sync(self) -> None:
        """See `File.sync`."""
        node = self._opened()
        with self._disk.call("sync", self._path) as fault:
            if fault is not None and fault.kind in (FaultKind.IO_ERROR, FaultKind.SYNC_ERROR):
                node.fail_sync()
                raise FsyncFailed(f"sync of {self._path} failed")
            node.sync()

    def drop_cache(self, position: int) -> None:
        """See `File.drop_cache`."""
        self._opened().drop_cache(position)

    def close(self) -> None:
        """See `File.close`."""
        self._opened()
        self._node = None
        self._disk.open_files -= 1
        if self._lock is not None:
            self._disk.unlock(self._lock)

    def fileno(self) -> int:
        """There is no descriptor."""
        raise StorageError(f"{self._path} is in memory and has no descriptor")

    def _opened(self) -> FileNode:
        assert self._node is not None, f"{self._path} is closed"
        return self._node


class MemoryDisk:
    """See the module.

    Attributes:
        calls: how many calls were numbered so far.
        trace: what they were, as "operation path".
        faults: which of them to strike; may be changed at any time.
        open_files: how many were opened and not closed.
        capacity_bytes: the disk is full when its files hold this much; None for no limit.
        wall_us: clock of the machine, by which files get their times.
    """

    wall_us = 1 << 62

    def __init__(self, faults: Mapping[int, Fault] | None = None, capacity_bytes: int | None = None) -> None:
        """Begin empty."""
        self.calls = 0
        self.open_files = 0
        self.trace: list[str] = []
        self.faults = dict(faults or {})
        self.capacity_bytes = capacity_bytes
        self._root = DirectoryNode()
        self._locks: set[str] = set()
        self._off = False

    def power_loss(self, survive: Survival = nothing_survives) -> "MemoryDisk":
        """Return the disk that the next start finds; this one is off."""
        self._off = True
        found = MemoryDisk(capacity_bytes=self.capacity_bytes)
        found._root = self._root.after_power_loss(PowerLoss(survive))
        return found

    def process_loss(self) -> None:
        """Go on after the process was killed: what was cached still is, no more durable than before."""
        self._off = False
        self.faults.clear()
        self._locks.clear()
        self.open_files = 0

    def content(self) -> object:
        """Return all that is on the disk, cached, durable and in between, to be compared with another's."""
        return self._root

    def open(self, path: str) -> File:
        """See `Disk.open`."""
        with self.call("open", path) as fault:
            _strike(fault, path, may_exhaust=True)
            return MemoryFile(self, path, file_at(self._root, path))

    def create(self, path: str) -> File:
        """See `Disk.create`."""
        parent, name = parent_at(self._root, path)
        with self.call("create", path) as fault:
            _strike(fault, path, needs_space=True)
            if name in parent.cached:
                raise StorageError(f"cannot create {path}: it exists")
            node = FileNode()
            parent.change({name: node})
            return MemoryFile(self, path, node)

    def exists(self, path: str) -> bool:
        """See `Disk.exists`."""
        self._refuse_if_off()
        return find(self._root, path) is not None

    def listdir(self, path: str) -> list[str]:
        """See `Disk.listdir`."""
        with self.call("listdir", path) as fault:
            _strike(fault, path, may_exhaust=True)
            return sorted(directory_at(self._root, path).cached)

    def mkdir(self, path: str) -> None:
        """See `Disk.mkdir`."""
        parent, name = parent_at(self._root, path)
        with self.call("mkdir", path) as fault:
            _strike(fault, path, needs_space=True)
            if name in parent.cached:
                raise StorageError(f"cannot create {path}: it exists")
            parent.change({name: DirectoryNode()})

    def rename(self, source: str, target: str) -> None:
        """See `Disk.rename`."""
        parent, name = parent_at(self._root, source)
        new_parent, new_name = parent_at(self._root, target)
        with self.call("rename", target) as fault:
            _strike(fault, source, needs_space=True)
            if name not in parent.cached:
                raise StorageError(f"cannot rename {source}: it is missing")
            if parent is new_parent:
                parent.change({name: None, new_name: parent.cached[name]})
            else:
                move_entry(parent, name, new_parent, new_name)

    def unlink(self, path: str) -> None:
        """See `Disk.unlink`."""
        with self.call("unlink", path) as fault:
            _strike(fault, path)
            if find(self._root, path) is None:
                return
            file_at(self._root, path)
            parent, name = parent_at(self._root, path)
            parent.change({name: None})

    def remove_tree(self, path: str) -> None:
        """See `Disk.remove_tree`: entry by entry, as the real one."""
        if not self.exists(path):
            return
        for name in self.listdir(path):
            below = f"{path}/{name}"
            if isinstance(find(self._root, below), DirectoryNode):
                self.remove_tree(below)
            else:
                self.unlink(below)
        parent, name = parent_at(self._root, path)
        with self.call("rmdir", path) as fault:
            _strike(fault, path)
            parent.change({name: None})

    def sync_dir(self, path: str) -> None:
        """See `Disk.sync_dir`."""
        node = directory_at(self._root, path)
        with self.call("sync_dir", path) as fault:
            if fault is not None and fault.kind in (FaultKind.IO_ERROR, FaultKind.SYNC_ERROR):
                node.pending.clear()
                raise FsyncFailed(f"sync of directory {path} failed")
            node.sync()

    def sync_all(self) -> bool:
        """See `Disk.sync_all`."""
        with self.call("sync_all", "") as fault:
            failed = fault is not None and fault.kind in (FaultKind.IO_ERROR, FaultKind.SYNC_ERROR)
            for node in all_nodes(self._root):
                if failed:
                    node.pending.clear()
                else:
                    node.sync()
            if failed:
                raise FsyncFailed("sync of the disk failed")
            return True

    def free_bytes(self) -> int:
        """See `Disk.free_bytes`."""
        return self.fitting(1 << 62)

    def lock(self, path: str) -> File:
        """See `Disk.lock`."""
        if path in self._locks:
            raise StorageError(f"{path} is held by another process")
        if not self.exists(path):
            self.create(path).close()
        self._locks.add(path)
        return MemoryFile(self, path, file_at(self._root, path), lock=path)

    def unlock(self, path: str) -> None:
        """Give a lock free; called by the file that holds it."""
        self._locks.discard(path)

    def fitting(self, wanted: int) -> int:
        """Return how many of ``wanted`` more bytes there is space for; called by files."""
        if self.capacity_bytes is None:
            return wanted
        used = sum(len(node.cached) for node in all_nodes(self._root) if isinstance(node, FileNode))
        return max(min(wanted, self.capacity_bytes - used), 0)

    @contextlib.contextmanager
    def call(self, operation: str, path: str) -> Iterator[Fault | None]:
        """Number one call and yield the fault that strikes it; called by files."""
        self._refuse_if_off()
        self.calls += 1
        self.trace.append(f"{operation} {path}")
        fault = self.faults.get(self.calls)
        off = fault is not None and fault.kind in (FaultKind.POWER_LOSS, FaultKind.POWER_LOSS_AFTER)
        if fault is not None and fault.kind is FaultKind.POWER_LOSS and operation != "write":
            self._off = True
            raise PowerLostError(operation)
        try:
            yield fault
        finally:
            self._off = self._off or off
        if off:
            raise PowerLostError(operation)

    def _refuse_if_off(self) -> None:
        if self._off:
            raise PowerLostError


def _strike(fault: Fault | None, path: str, *, needs_space: bool = False, may_exhaust: bool = False) -> None:
    """Raise the error of a fault that strikes any call; faults of other calls pass."""
    match fault.kind if fault is not None else None:
        case FaultKind.DISK_FULL if needs_space:
            raise DiskFull(f"cannot write {path}: the disk is full")
        case FaultKind.SHORT_WRITE if needs_space:
            raise DiskFull(f"cannot write {path}: the disk is full")
        case FaultKind.EXHAUSTED if needs_space or may_exhaust:
            raise OutOfResources(f"cannot use {path}: too many open files")
        case FaultKind.IO_ERROR:
            raise StorageError(f"input/output error on {path}")
        case FaultKind.POWER_LOSS:
            raise PowerLostError
        case _:
            return
