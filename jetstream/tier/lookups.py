"""Look-ups in a store, through `pyarrow.fs`.

HDFS has its own (`hdfs`): there Arrow does not distinguish a missing path from a failed look-up.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow.fs as pafs


class Lookups(Protocol):
    """Look-ups in a store, by the full path; each raises `OSError` if the store does not answer."""

    def info(self, path: str) -> pafs.FileInfo:
        """Return the file or directory at ``path``; of the type ``NotFound`` if there is none."""

    def listed(self, directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """Return the content of ``directory``; nothing if it is missing."""

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is no error."""


@dataclass(frozen=True, slots=True)
class ArrowLookups:
    """Look-ups in a store of which Arrow's answers are right."""

    files: pafs.FileSystem

    def info(self, path: str) -> pafs.FileInfo:
        """See `Lookups.info`."""
        return self.files.get_file_info([path])[0]

    def listed(self, directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """See `Lookups.listed`."""
        return self.files.get_file_info(
            pafs.FileSelector(directory, allow_not_found=True, recursive=recursive)
        )

    def delete(self, path: str) -> None:
        """See `Lookups.delete`."""
        try:
            self.files.delete_file(path)
        except FileNotFoundError:
            return
