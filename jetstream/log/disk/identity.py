"""The identity of a data directory, and the lock that keeps it to one process.

The identity is a random name given when the directory is first used. It is registered with the node, so
that a wiped or exchanged directory is noticed before anything is served from it.

    name      content
    identity  state file, ``{"identity": UUID}``
    lock      empty; held with ``flock`` while a process uses the directory
"""

import uuid
from typing import Final

from envelope.errors import CorruptDataError, JetstreamError, StorageError
from jetstream.log.disk.port import Disk, File
from jetstream.log.disk.state_file import NEW_SUFFIX, decode_state, read_whole, write_state

IDENTITY_FILE: Final = "identity"
LOCK_FILE: Final = "lock"
_NOT_OURS_BUT_HARMLESS: Final = frozenset((LOCK_FILE, IDENTITY_FILE + NEW_SUFFIX, "lost+found"))
"""Names allowed in a directory that is about to get its identity: "lost+found" comes with a file system."""


class DirectoryIdentity:
    """The identity of a locked data directory; the lock is held until `close`."""

    __slots__ = ("_lock", "identity")

    def __init__(self, identity: str, lock: File) -> None:
        self.identity = identity
        self._lock = lock

    def __str__(self) -> str:
        return self.identity

    @classmethod
    def open_or_create(cls, disk: Disk, expected: str | None = None) -> "DirectoryIdentity":
        """Lock the directory at the root of ``disk`` and return its identity, a new one if it is empty.

        Returns when the identity is durable.

        Raises:
            StorageError: another process holds the directory, it holds files but no identity, or its
                identity is not the ``expected`` one.
            CorruptDataError: the identity file is damaged.
        """
        lock = disk.lock(LOCK_FILE)
        try:
            identity = _read(disk) or _create(disk)
            _refuse_other(identity, expected)
        except JetstreamError:
            lock.close()
            raise
        return cls(identity, lock)

    def close(self) -> None:
        """Release the directory."""
        self._lock.close()


def _refuse_other(identity: str, expected: str | None) -> None:
    if expected is not None and identity != expected:
        raise StorageError(f"the data directory is {identity}, not {expected}: it was exchanged")


def _read(disk: Disk) -> str | None:
    if not disk.exists(IDENTITY_FILE):
        return None
    identity = decode_state(read_whole(disk, IDENTITY_FILE)).get("identity")
    if not isinstance(identity, str) or not identity:
        raise CorruptDataError("the identity file names no identity")
    return identity


def _create(disk: Disk) -> str:
    strangers = [name for name in disk.listdir("") if name not in _NOT_OURS_BUT_HARMLESS]
    if strangers:
        raise StorageError(f"the data directory has no identity but holds {strangers[0]!r}: it is not ours")
    identity = new_identity()
    put_identity(disk, identity)
    return identity


def new_identity() -> str:
    """Return an identity that no directory has."""
    return str(uuid.uuid4())


def put_identity(disk: Disk, identity: str) -> None:
    """Make the root of ``disk`` a data directory with that identity; durable on return."""
    write_state(disk, IDENTITY_FILE, {"identity": identity})
