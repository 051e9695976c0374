"""An archive's directory: makes changes so that a crash at any moment leaves all of one or nothing of it.

Blocking, on a `Disk`. In this order, each step durable before the next:

1. the staged files, and the names that they lie under;
2. the change, in ``_archive/change.json``: from here on it will happen;
3. the files are moved to their places, where readers of directories see them;
4. the manifest, in which readers of the manifest see them, and not any more those that were merged;
5. the merged files are removed.

Opening the archive completes the steps 3 to 5, and removes files that were staged in vain. A single process
at a time holds an archive; anybody may read its manifest meanwhile.
"""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from envelope.errors import CorruptDataError, RequestError, StorageError
from jetstream.log.disk.port import Disk, make_directories, parent_of
from jetstream.log.disk.state_file import decode_state, read_whole, write_state
from jetstream.spark.pipelines.archives.archive_files import (
    CHANGE_PATH,
    LOCK_PATH,
    MANIFEST_PATH,
    STATE_DIRECTORY,
    WORK_DIRECTORY,
    ArchiveManifest,
    ManifestChange,
    decode_change,
    decode_manifest,
    encode_change,
    encode_manifest,
)

__all__ = ["ArchiveStore", "held_archive", "read_manifest"]


class ArchiveStore:
    """A held archive; made by `held_archive`.

    After an error its state is not known: it refuses everything until it is opened again.
    """

    def __init__(self, disk: Disk) -> None:
        """Finish a change that a crash has cut short."""
        self._disk = disk
        self._is_sound = True
        self._manifest = _stored_manifest(disk)
        change = _stored_change(disk)
        if change is not None and change.version == self._manifest.version + 1:
            self._finish(change)
        elif change is not None and change.version == self._manifest.version:
            self._remove(change)
        self._clear_work()

    @property
    def manifest(self) -> ArchiveManifest:
        """The current manifest."""
        return self._manifest

    @property
    def disk(self) -> Disk:
        """Where it lies."""
        return self._disk

    def begin(self, levels: tuple[str, ...]) -> None:
        """Make a new archive, with these levels of directories; returns when that is durable.

        Raises:
            InvalidConfig: the archive has other levels of directories.
            DiskFull, StorageError: the disk refuses.
        """
        begun = self._manifest.begun(levels)
        if begun is not self._manifest:
            with self._whole():
                self._replace_manifest(begun)

    def staging(self) -> str:
        """Return the path of a new directory, not made yet, for files of the next change.

        Its name is never used again: tasks of a killed query may still write to theirs.
        """
        with self._whole():
            make_directories(self._disk, WORK_DIRECTORY)
        return f"{WORK_DIRECTORY}/{self._manifest.version + 1:010}-{uuid.uuid4().hex}"

    def commit(self, change: ManifestChange) -> None:
        """Bring a change in; returns when it is durable.

        Raises:
            DiskFull, StorageError: the disk refuses; opening the archive again finishes or drops the change.
        """
        with self._whole():
            self._sync_staged([move.staged for move in change.moves])
            write_state(self._disk, CHANGE_PATH, encode_change(change))
            self._finish(change)
            self._clear_work()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        if not self._is_sound:
            raise StorageError("a change of the archive was cut short: open it again, which finishes it")
        self._is_sound = False
        yield
        self._is_sound = True

    def _sync_staged(self, paths: list[str]) -> None:
        for path in paths:
            file = self._disk.open(path)
            try:
                file.sync()
            finally:
                file.close()
        for directory in sorted(_directories(paths, WORK_DIRECTORY), reverse=True):
            self._disk.sync_dir(directory)

    def _finish(self, change: ManifestChange) -> None:
        for move in change.moves:
            self._place(move.staged, move.file.path)
        for directory in sorted({move.file.directory for move in change.moves}):
            self._disk.sync_dir(directory)
        self._replace_manifest(self._manifest.after(change))
        self._remove(change)

    def _place(self, staged: str, path: str) -> None:
        if self._disk.exists(staged):
            make_directories(self._disk, parent_of(path))
            self._disk.rename(staged, path)
        elif not self._disk.exists(path):
            raise CorruptDataError(f"{path} is missing, and so is {staged}, which was to become it")

    def _replace_manifest(self, manifest: ArchiveManifest) -> None:
        make_directories(self._disk, STATE_DIRECTORY)
        write_state(self._disk, MANIFEST_PATH, encode_manifest(manifest))
        self._manifest = manifest

    def _remove(self, change: ManifestChange) -> None:
        for path in change.removed:
            if self._disk.exists(path):
                self._disk.unlink(path)
        for directory in sorted({parent_of(path) for path in change.removed}):
            self._disk.sync_dir(directory)

    def _clear_work(self) -> None:
        if self._disk.exists(WORK_DIRECTORY):
            for name in self._disk.listdir(WORK_DIRECTORY):
                self._disk.remove_tree(f"{WORK_DIRECTORY}/{name}")


@contextmanager
def held_archive(disk: Disk) -> Iterator[ArchiveStore]:
    """Hold the archive in ``disk`` for a block; one that is not there is made.

    Raises:
        StorageError: another process holds it, or the disk refuses.
        CorruptDataError: its manifest cannot be read, or a file of its last change is missing.
    """
    make_directories(disk, STATE_DIRECTORY)
    lock = disk.lock(LOCK_PATH)
    try:
        yield ArchiveStore(disk)
    finally:
        lock.close()


def read_manifest(disk: Disk) -> ArchiveManifest:
    """Return the manifest of an archive, also while another process holds it.

    Raises:
        RequestError: there is no archive.
        CorruptDataError: its manifest cannot be read.
    """
    manifest = _stored_manifest(disk)
    if manifest.version == 0:
        raise RequestError(f"there is no archive: no {MANIFEST_PATH}")
    return manifest


def _stored_manifest(disk: Disk) -> ArchiveManifest:
    if not disk.exists(MANIFEST_PATH):
        return ArchiveManifest()
    return decode_manifest(decode_state(read_whole(disk, MANIFEST_PATH)))


def _stored_change(disk: Disk) -> ManifestChange | None:
    if not disk.exists(CHANGE_PATH):
        return None
    return decode_change(decode_state(read_whole(disk, CHANGE_PATH)))


def _directories(paths: Iterable[str], root: str) -> set[str]:
    """Return the directories from ``root`` down to the files."""
    found = {root}
    for path in paths:
        directory = parent_of(path)
        while directory not in found:
            found.add(directory)
            directory = parent_of(directory)
    return found
