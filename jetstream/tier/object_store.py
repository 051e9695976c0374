"""An object store, by URI: a local folder, S3 and compatible ones, Google Cloud Storage, HDFS, Azure.

All of it is `pyarrow.fs`, which has no compare-and-set: an object is written once under a name that follows
from its content, read back, and only then referred to. All calls block.

A local folder is made durable before a write returns: its files are synced, and the directories that hold
them. The other stores promise that by themselves, HDFS only with `dfs.datanode.synconclose`.
"""

import contextlib
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final, Self

import pyarrow as pa
import pyarrow.fs as pafs

from envelope.errors import InvalidConfig, TierUnavailable
from envelope.limits import MIB
from envelope.types import Buffer
from jetstream.tier import hdfs
from jetstream.tier.lookups import ArrowLookups, Lookups

CHUNK_BYTES: Final = MIB
_WITHOUT_DIRECTORIES: Final = frozenset(("s3", "gcs", "abfs"))
# Keys have slashes, which are not always written as %2F; a host's port is no key.
_SECRET: Final = re.compile(r"(?<=://)(?:[^/@]*|[^/@:]*:(?!\d+/)[^@?\s]*)@")


def without_secrets(uri: str) -> str:
    """Return ``uri`` without user, password and parameters, to be shown."""
    return _SECRET.sub("", uri).partition("?")[0]


class ObjectStore:
    """Objects by their path below one root; every error of the store is `TierUnavailable`."""

    def __init__(
        self,
        files: pafs.FileSystem,
        root: str,
        settle: Callable[[str, str], None] | None = None,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """Store below ``root`` of ``files``; ``settle`` makes a path below it durable (root, path)."""
        self._files = files
        self._lookups: Lookups = hdfs.HdfsLookups(files) if files.type_name == "hdfs" else ArrowLookups(files)
        self._root = root.rstrip("/")
        self._settle = settle
        self._has_directories = files.type_name not in _WITHOUT_DIRECTORIES
        self._answered = answered

    def watched(self, answered: Callable[[], None]) -> "ObjectStore":
        """Return the same store; it calls ``answered`` on its caller's thread after each answer."""
        return ObjectStore(self._files, self._root, self._settle, answered)

    @classmethod
    def at(cls, uri: str) -> Self:
        """Return the store at ``uri``, a URI or the absolute path of a local folder; sends nothing yet.

        Raises:
            InvalidConfig: there is no such kind of store, or the URI is incomplete.
        """
        opened = hdfs.from_uri if hdfs.is_hdfs(uri) else pafs.FileSystem.from_uri
        try:
            files, root = opened(uri)
        except (OSError, pa.ArrowException) as error:
            raise InvalidConfig(f"tier: {without_secrets(uri)}: {_first_line(error)}", field="tier") from None
        if not root:
            raise InvalidConfig(f"tier: {without_secrets(uri)}: it names no place to store at", field="tier")
        is_local = isinstance(files, pafs.LocalFileSystem)
        return cls(files, root, _settle_local if is_local else None)

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        """Write an object, replacing one of that path; durable on return.

        Raises:
            TierUnavailable: the store refused; some of it may be there.
        """
        with self._doing(f"writing {path}"):
            if self._has_directories:
                self._files.create_dir(self._at(str(PurePosixPath(path).parent)), recursive=True)
            # An exception closes the stream too: the object is then left in part, as its name shows.
            with self._files.open_output_stream(self._at(path)) as stream:
                for chunk in chunks:
                    stream.write(chunk)
                    self._answered()
        try:
            self.settle(path)
        except TierUnavailable:
            # Another sync might succeed although the pages are gone: the object must be written anew.
            with contextlib.suppress(TierUnavailable):
                self.delete(path)
            raise

    def put_shared(self, path: str, chunks: Iterable[Buffer]) -> None:
        """Write an object that others may write at the same time, with the same bytes; durable on return.

        In a folder it is written under a name that ends in ``.part``, which a process that is killed leaves
        there, and renamed. Object stores show no object in part; HDFS ends the older of two writers.

        Raises:
            TierUnavailable: the store refused.
        """
        if self._settle is None:
            self.put(path, chunks)
            return
        begun = f"{path}.{uuid.uuid4().hex}.part"
        try:
            self.put(begun, chunks)
            with self._doing(f"renaming {begun}"):
                self._files.move(self._at(begun), self._at(path))
        except TierUnavailable:
            with contextlib.suppress(TierUnavailable):
                self.delete(begun)
            raise
        self.settle(path)

    def settle(self, path: str) -> None:
        """Return when an existing object is durable; raises `TierUnavailable`."""
        with self._doing(f"syncing {path}"):
            if self._settle is not None:
                self._settle(self._root, path)

    def drop_cache(self, path: str) -> None:
        """Ask that this machine's cached pages of an object be forgotten, if the store is a local folder.

        Raises:
            TierUnavailable: there is none, or the folder refused.
        """
        if self._settle is None:
            return
        with self._doing(f"looking at {path}"):
            descriptor = os.open(self._at(path), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def chunks(self, path: str) -> Iterator[Buffer]:
        """Yield the bytes of an object, each chunk valid until the next one.

        Raises:
            TierUnavailable: there is none, or the store refused.
        """
        room = memoryview(bytearray(CHUNK_BYTES))  # one for all: fresh memory costs more than the copy
        with self._doing(f"reading {path}"), self._files.open_input_stream(self._at(path)) as stream:
            while count := stream.readinto(room):
                self._answered()
                yield room[:count]

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[pa.NativeFile]:
        """Open an object for a ``with`` block; errors in the block are typed too.

        Raises:
            TierUnavailable: there is none, or the store refused.
        """
        with self._doing(f"reading {path}"), self._files.open_input_stream(self._at(path)) as stream:
            yield stream

    def link(self, path: str, target: Path) -> bool:
        """Link an object of a local folder to ``target``, so that it need not be copied.

        Returns:
            False: it is not linked; the folder is on another file system, or the store is no folder.
        """
        if self._settle is None:
            return False
        try:
            target.hardlink_to(self._at(path))
        except OSError:
            return False
        return True

    def size_of(self, path: str) -> int | None:
        """Return the size of an object in bytes, None if there is none; raises `TierUnavailable`."""
        with self._doing(f"looking at {path}"):
            info = self._lookups.info(self._at(path))
        return info.size if info.type is pafs.FileType.File else None

    def sizes(self, directory: str) -> dict[str, int]:
        """Return the objects below ``directory``, with their sizes in bytes; none if it is missing.

        Raises:
            TierUnavailable: the store refused.
        """
        with self._doing(f"listing {directory}"):
            found = self._lookups.listed(self._at(directory), recursive=True)
        skipped = len(self._root) + 1
        return {entry.path[skipped:]: entry.size or 0 for entry in found if entry.type is pafs.FileType.File}

    def directories(self) -> list[str]:
        """Return the directories below the root, sorted.

        Raises:
            TierUnavailable: the store refused.
        """
        # Of Google Cloud Storage, Arrow lists directories that were made as such, and no others.
        is_recursive = self._files.type_name == "gcs"
        with self._doing("listing"):
            found = self._lookups.listed(self._root or "/", recursive=is_recursive)
        if is_recursive:
            below = (entry.path[len(self._root) + 1 :].split("/", 1) for entry in found)
            return sorted({first for first, *others in below if others})
        return sorted(entry.base_name for entry in found if entry.type is pafs.FileType.Directory)

    def check_folder(self) -> None:
        """Raise if the store is a missing folder; other stores are not checked.

        Raises:
            FileNotFoundError: there is no such folder; a node makes it when it writes its first object.
            NotADirectoryError: it is a file.
            TierUnavailable: the store refused.
        """
        if not self._has_directories:
            return
        with _typed("looking at it"):
            found = self._lookups.info(self._root or "/").type
        if found is pafs.FileType.NotFound:
            raise FileNotFoundError(f"there is no folder {self._root}")
        if found is pafs.FileType.File:
            raise NotADirectoryError(f"{self._root} is a file, not a folder")

    def delete(self, path: str) -> None:
        """Delete an object; a missing one (another node may have been faster) is no error.

        Raises:
            TierUnavailable: the store refused.
        """
        with self._doing(f"deleting {path}"):
            self._lookups.delete(self._at(path))

    def delete_directory(self, directory: str) -> None:
        """Delete all objects below ``directory``, if any.

        Raises:
            TierUnavailable: the store refused; some of it may be gone.
        """
        for path in sorted(self.sizes(directory)):
            self.delete(path)
        with self._doing(f"deleting {directory}"), contextlib.suppress(FileNotFoundError):
            info = self._lookups.info(self._at(directory))
            if info.type is pafs.FileType.Directory:
                self._delete_empty(self._at(directory))

    def _delete_empty(self, directory: str) -> None:
        try:
            self._files.delete_dir(directory)
        except OSError:
            # Of Azure, Arrow sees empty directories, and cannot delete one with every kind of credentials.
            # No object is left, and an empty directory counts as nothing.
            if self._has_directories:
                raise

    @contextlib.contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        with _typed(what):
            yield
        self._answered()

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


@contextlib.contextmanager
def _typed(doing: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        raise TierUnavailable(f"the object store failed while {doing}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return without_secrets(lines[0]) if lines else type(error).__name__


def _settle_local(root: str, path: str) -> None:
    """Sync a file and every directory on the way to it, from below the root's parent."""
    _sync(f"{root}/{path}", os.O_RDONLY)
    parts = PurePosixPath(path).parts[:-1]
    for depth in range(len(parts), -1, -1):
        _sync("/".join((root, *parts[:depth])), os.O_RDONLY | os.O_DIRECTORY)
    _sync(os.path.dirname(root) or "/", os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
