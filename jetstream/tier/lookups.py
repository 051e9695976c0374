"""What a store says is in it, as `pyarrow.fs` tells it.

HDFS is asked otherwise (`hdfs`): Arrow does not tell what is not there from what could not be looked at.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow.fs as pafs


class Lookups(Protocol):
    """Questions to a store, by the full path; each raises `OSError` if it was not answered."""

    def info(self, path: str) -> pafs.FileInfo:
        """Return what is at ``path``; of the type ``NotFound`` if nothing is."""

    def listed(self, directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """Return what is in ``directory``; nothing if it is not there."""

    def delete(self, path: str) -> None:
        """Delete a file; one that is not there is no error."""


@dataclass(frozen=True, slots=True)
class ArrowLookups:
    """Of a store where Arrow's answers can be taken as they are."""

    files: pafs.FileSystem

    def info(self, path: str) -> pafs.FileInfo:
        """Return what is at ``path``."""
        return self.files.get_file_info([path])[0]

    def listed(self, directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """Return what is in ``directory``."""
        return self.files.get_file_info(
            pafs.FileSelector(directory, allow_not_found=True, recursive=recursive)
        )

    def delete(self, path: str) -> None:
        """Delete a file."""
        try:
            self.files.delete_file(path)
        except FileNotFoundError:
            return
