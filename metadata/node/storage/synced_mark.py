"""A hint beside the log: how much of it is known to be durable.

The end of a log cannot say by itself whether damaged last bytes were once durable (and so are damage)
or never were (a torn append). This file says it: after every sync the new length is noted here, without
waiting for the disk. The note survives the death of the process; after a power loss it may be some
seconds old, which makes it smaller, never wrong. It holds nothing that was promised to anybody, so its
own damage only makes it forget.

Two slots are written in turn, so that a torn note leaves the one before:

    offset size field
    0      8    generation of the log, u64 little-endian
    8      8    bytes of it that are durable, u64
    16     4    CRC32C of bytes 0 to 16
    20     12   zero
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from metadata.node.storage.disk_port import MetadataFile

_CHECKED: Final = struct.Struct("<QQ")
_SLOT: Final = struct.Struct("<16sI12x")
SLOTS: Final = 2


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """At least ``length`` bytes of ``generation`` are durable."""

    generation: int
    length: int


NOTHING: Final = Mark(0, 0)


class SyncedMark:
    """The newest mark in one small file."""

    __slots__ = ("_file", "_turn")

    def __init__(self, file: MetadataFile) -> None:
        self._file = file
        self._turn = 0

    def read(self) -> Mark:
        """Return the newest legible mark, `NOTHING` if there is none."""
        marks = [self._slot(turn) for turn in range(SLOTS)]
        newest = max(marks)
        self._turn = (marks.index(newest) + 1) % SLOTS
        return newest

    def write(self, mark: Mark) -> None:
        """Note ``mark``; durable only after `sync`, and safe before."""
        checked = _CHECKED.pack(mark.generation, mark.length)
        self._file.write((_SLOT.pack(checked, crc32c(checked)),), self._turn * _SLOT.size)
        self._turn = (self._turn + 1) % SLOTS

    def sync(self) -> None:
        """Return when the newest mark is durable."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _slot(self, turn: int) -> Mark:
        data = self._file.read(turn * _SLOT.size, _SLOT.size)
        if len(data) < _SLOT.size:
            return NOTHING
        checked, crc = _SLOT.unpack(data)
        if crc != crc32c(checked):
            return NOTHING
        return Mark(*_CHECKED.unpack(checked))
