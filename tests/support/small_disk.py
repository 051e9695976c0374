"""A file system that is small enough to be full: a tmpfs on a directory, and a ballast file in it.

Mounting needs root. A tmpfs forgets everything when it is unmounted, and nothing when a process is killed.
"""

import os
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_MIB: Final = 1 << 20


def can_mount() -> bool:
    """Tell whether this process may mount file systems."""
    return os.geteuid() == 0


class SmallDisk:
    """A mounted tmpfs, for a block; see the module."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        """``directory`` is made if it is not there; what is in it is hidden meanwhile."""
        self._directory = directory
        self._size_bytes = size_bytes
        self._ballast = directory / "ballast"

    def __enter__(self) -> Self:
        """Mount it.

        Raises:
            subprocess.CalledProcessError: it is not allowed here.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes},mode=0750"
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self._directory)]
        subprocess.run(command, check=True, capture_output=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Unmount it, with all that is there."""
        subprocess.run(["umount", "-l", str(self._directory)], check=True, capture_output=True)

    def fill(self, left_bytes: int) -> None:
        """Take all room but ``left_bytes``, rounded down to whole pages."""
        with self._ballast.open("ab") as ballast:
            state = os.fstatvfs(ballast.fileno())
            wanted = max(0, state.f_bavail * state.f_bsize - left_bytes)
            for start in range(0, wanted, _MIB):
                try:
                    os.posix_fallocate(ballast.fileno(), ballast.tell() + start, min(_MIB, wanted - start))
                except OSError:  # somebody was faster: full is full
                    return

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)
