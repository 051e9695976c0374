"""What the page cache holds of files: read it in, drop it, and ask, so that "cold" and "cached" are facts.

Only the kernel of this machine is asked: a virtual disk may lie in the memory of its host.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_READ_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 5
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def warm(files: Sequence[Path]) -> None:
    """Read the files once."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(_READ_BYTES):
                pass


def drop(files: Sequence[Path]) -> None:
    """Have the kernel forget the files' pages; dirty ones are written back first."""
    os.sync()
    for _ in range(_ATTEMPTS):  # pages that another core has just touched are spared the first time
        for path in files:
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if not resident_share(files):
            return


def resident_share(files: Sequence[Path]) -> float:
    """Return which part of the files' pages is in the page cache, 0 to 1, by ``mincore``."""
    resident = pages = 0
    for path in files:
        flags = _page_flags(path)
        resident += sum(flag & 1 for flag in flags)
        pages += len(flags)
    return resident / pages if pages else 0.0


def _page_flags(path: Path) -> bytes:
    with path.open("rb") as file:
        length = os.fstat(file.fileno()).st_size
        if not length:
            return b""
        # Not the mmap module: it gives no address of a map that is only read. PROT_READ touches no page.
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "mmap", str(path))
        try:
            flags = ctypes.create_string_buffer(-(-length // mmap.PAGESIZE))
            if _libc.mincore(address, length, flags):
                raise OSError(ctypes.get_errno(), "mincore", str(path))
            return flags.raw
        finally:
            _libc.munmap(address, length)
