"""HDFS: look-ups that Arrow gets wrong, and the Java machine that comes with it.

**Look-ups.** Arrow uses HDFS through libhdfs, and takes every failure to look at a path for "nothing is
there", even if the namenode is away: a stream would seem to have no objects. Only a listing that must find
its directory raises the reason, so a path counts as missing only after such a listing.

**Signals.** libhdfs starts a Java machine in this process. It takes SIGINT, SIGTERM, SIGHUP and SIGQUIT over,
so that a node would end without closing anything. Hadoop, which runs a command as it starts, has SIGCHLD set
to its default, so that the event loop would not notice the end of a child. All of them are put back.

**Users.** Of a URI's parts Arrow takes the parameter ``user`` alone, and nothing before the ``@``.

**Source:** Arrow's ``filesystem/hdfs.cc`` (``GetFileInfo``, ``StatSelector``); the option ``-Xrs`` of Java.
"""

import contextlib
import ctypes
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

import pyarrow.fs as pafs

_SCHEMES: Final = ("hdfs", "viewfs")
_OURS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGCHLD)
_SIGACTION_BYTES: Final = 256
"""More than the size of a ``struct sigaction``, which is kept as opaque bytes."""
_libc: Final = ctypes.CDLL(None)


def is_hdfs(uri: str) -> bool:
    """Return whether ``uri`` is of HDFS."""
    return urlsplit(uri).scheme in _SCHEMES


def from_uri(uri: str) -> tuple[pafs.FileSystem, str]:
    """Return the HDFS of a URI and the path in it, as Arrow's own; sends nothing yet.

    Raises:
        OSError: there is no libhdfs or no Java, Hadoop's jars are missing, or the host has no address.
    """
    parts = urlsplit(uri)
    if parts.username and "user" not in parse_qs(parts.query):
        query = f"{parts.query}&user={parts.username}".removeprefix("&")
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2], query=query)
    with signals_kept():
        files, path = pafs.FileSystem.from_uri(urlunsplit(parts))
    return files, path


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Restore the handlers of signals after the block, also those that were not set from Python."""
    before = [(number, ctypes.create_string_buffer(_SIGACTION_BYTES)) for number in _OURS]
    for number, action in before:
        _libc.sigaction(number, None, action)
    try:
        yield
    finally:
        for number, action in before:
            _libc.sigaction(number, action, None)


@dataclass(frozen=True, slots=True)
class HdfsLookups:
    """`lookups.Lookups` of HDFS."""

    files: pafs.FileSystem

    def info(self, path: str) -> pafs.FileInfo:
        """See `Lookups.info`."""
        found = self.files.get_file_info([path])[0]
        if found.type is pafs.FileType.NotFound and not self._is_missing(path):
            raise OSError(f"it was said that {path} is not there, and then that it is")
        return found

    def listed(self, directory: str, *, recursive: bool) -> list[pafs.FileInfo]:
        """See `Lookups.listed`."""
        # Arrow's own recursion does not say which directory was gone: the first one, or one below it.
        try:
            found = self.files.get_file_info(pafs.FileSelector(directory))
        except FileNotFoundError:
            return []
        inside = [entry.path for entry in found if recursive and entry.type is pafs.FileType.Directory]
        return found + [entry for path in inside for entry in self.listed(path, recursive=True)]

    def delete(self, path: str) -> None:
        """See `Lookups.delete`."""
        try:
            self.files.delete_file(path)
        except OSError:  # one error for every reason, and for a missing file
            with contextlib.suppress(OSError):
                if self._is_missing(path):
                    return
            raise

    def _is_missing(self, path: str) -> bool:
        try:
            self.files.get_file_info(pafs.FileSelector(path))
        except FileNotFoundError:
            return True
        return False
