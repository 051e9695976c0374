"""Short-circuit reads: bodies from the node's own files, where the node is on this machine.

The node returns where a range lies instead of sending it, and this process reads it, if the system lets it:
one copy out of the page cache, no socket. It is checked as if it had been sent. A failure of any kind (no
right to read, another mount namespace, a segment that was rewritten or removed since) costs a request: the
range is fetched again, over the socket.

Source: short-circuit local reads of HDFS (HDFS-347, HDFS-2246), with names instead of descriptors.
"""

import asyncio
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from jetstream.protocol.responses import StoredRangeResponse

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class RangeAway(Exception):
    """A range cannot be read at the place that the node returned; ask for it over the socket."""


class LocalRanges:
    """The files of one node, as far as this process may read them.

    Invariant:
        C16: bytes come only from the very file that the node meant: regular, of the same device and inode,
            all of the range.
    """

    def __init__(self, *, usable: bool) -> None:
        """``usable``: the node is on this machine, and the options allow it."""
        self.usable = usable
        """Whether to ask for ranges where they lie; no more once the first one could not be read."""
        self._has_worked = False

    async def read(self, where: StoredRangeResponse, room: memoryview) -> None:
        """Fill ``room``; a thread reads bytes that are not in the page cache.

        Raises:
            RangeAway: the file is missing, another one or shorter, or this process may not read it.
        """
        assert len(room) == where.length, "C16: the whole range is read"
        try:
            done = _read_cached(where, room)
            if done < len(room):
                # It opens the file itself: the waiting task may be cancelled, even before it has begun.
                await asyncio.to_thread(_read_rest, where, room, done)
        except (OSError, ValueError) as error:  # ValueError: a path that is none in this system's encoding
            self.usable = self._has_worked
            raise RangeAway(f"{where.path}: {error}") from error
        self._has_worked = True


@contextmanager
def _opened(where: StoredRangeResponse) -> Iterator[int]:
    _check(os.lstat(where.path), where)  # before it is opened: to open a device may do something
    descriptor = os.open(where.path, _OPEN_FLAGS)
    try:
        _check(os.fstat(descriptor), where)
        yield descriptor
    finally:
        os.close(descriptor)


def _check(status: os.stat_result, where: StoredRangeResponse) -> None:
    found = (status.st_dev, status.st_ino)
    if not stat.S_ISREG(status.st_mode) or found != (where.device, where.inode):
        raise FileNotFoundError(f"another file is there, {found}")
    if status.st_size < where.position + where.length:
        raise FileNotFoundError(f"the file ends at {status.st_size}")


def _read_cached(where: StoredRangeResponse, room: memoryview) -> int:
    """Read what is in the page cache, up to the first page that is not; return how many bytes."""
    done = 0
    with _opened(where) as descriptor:
        while done < len(room):
            try:
                count = os.preadv(descriptor, [room[done:]], where.position + done, os.RWF_NOWAIT)
            except OSError:
                # EAGAIN: not in memory. EOPNOTSUPP: this file system cannot tell. Any other comes again.
                break
            if count == 0:
                break
            done += count
    return done


def _read_rest(where: StoredRangeResponse, room: memoryview, done: int) -> None:
    """Read from ``done`` bytes on; blocks, for a thread."""
    with _opened(where) as descriptor:
        while done < len(room):
            count = os.preadv(descriptor, [room[done:]], where.position + done)
            if count == 0:
                raise FileNotFoundError(f"the file ends at {where.position + done}")
            done += count
