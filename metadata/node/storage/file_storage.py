"""`Storage` in one directory: a file that begins with a snapshot and goes on as the log behind it.

One *generation* is one file (`metadata.node.storage.frames`). Compaction writes the next generation beside it
and renames it into being, so a snapshot and the log that continues it can never disagree, and nothing
is ever cleared in order to be written again. Suffixes are not cut from the file either: an entry
replaces all from its index on, when it is written and when it is read back.

Opening is recovery: the torn last append is cut, any other damage raises and changes nothing. All that was
read is written as the next generation, for the bytes found may owe their place in the page cache to a
process whose sync failed, and only written anew are they sure to reach the disk.

Damage and its meaning:

    damage                                            is
    in the first frame, or before an intact frame     corruption, always
    below the synced mark                             corruption, always
    the log missing, or older than the mark           corruption
    above the mark, nothing intact behind it          a torn append, cut

The mark (`metadata.node.storage.synced_mark`) is exact after the death of a process and after a clean close;
a power loss may leave it some seconds old. So one case is beyond telling: a last append that was synced,
with none since, damaged at rest after a power loss that took the mark's note of it.

Invariant:
    S4: bytes of a file below ``synced_end`` never change.
        Held by test_no_fault_at_any_call_loses_a_proposal_or_splits_one.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from envelope.errors import CorruptDataError, DiskFull, JetstreamError, StorageError
from metadata.limits import APPEND_BYTES_MAX, ENTRY_BYTES_MAX
from metadata.node.storage.disk_port import MetadataDisk, MetadataFile
from metadata.node.storage.frames import FrameContents, encode_frame, scan
from metadata.node.storage.port import Stored, StoredLog
from metadata.node.storage.synced_mark import NOTHING, SLOTS, Mark, SyncedMark
from metadata.raft.state import Entry, HardState, Snapshot

_LOG_NAME: Final = re.compile(r"(\d{20})\.wal")
_NEW: Final = ".new"
_UNNAMED: Final = re.compile(r"\d{20}\.wal\.new")
MARK_NAME: Final = "synced"


@dataclass(frozen=True, slots=True)
class StorageReport:
    """The result of opening."""

    generation: int
    appends: int
    torn_bytes_cut: int


class FileStorage:
    """See the module; made by `open`."""

    def __init__(self, disk: MetadataDisk, directory: str, generation: int) -> None:
        """Name the parts; nothing is read or written."""
        self._disk = disk
        self._directory = directory
        self._generation = generation
        self._log = StoredLog()
        self._file: MetadataFile | None = None
        self._mark: SyncedMark | None = None
        self._synced_end = 0
        self._failed: JetstreamError | None = None
        self.recovery = StorageReport(generation, 0, 0)

    @classmethod
    def open(cls, disk: MetadataDisk, directory: str, *, create: bool = True) -> "FileStorage":
        """Recover the storage in ``directory``, or begin an empty one if there was none.

        Args:
            disk: where.
            directory: relative to the disk; its parent exists.
            create: False if one must be there, because other things on this disk say so.

        Raises:
            CorruptDataError: bytes that had been durable are damaged or missing; nothing was changed.
            StorageError: the disk refused.
            DiskFull: there is no room to begin.
        """
        if not disk.exists(directory):
            if not create:
                raise CorruptDataError(f"the metadata log in {directory!r} is missing")
            disk.mkdir(directory)
        disk.sync_dir(directory.rpartition("/")[0])
        names = disk.listdir(directory)
        generations = sorted(int(match[1]) for name in names if (match := _LOG_NAME.fullmatch(name)))
        if not generations and (MARK_NAME in names or not create):
            raise CorruptDataError(f"the metadata log in {directory!r} is missing")
        storage = cls(disk, directory, generations[-1] if generations else 0)
        with contextlib.ExitStack() as unless_opened:
            unless_opened.callback(storage._close_files)
            if generations:
                storage._recover(has_mark=MARK_NAME in names)
            storage._unlink_all(name for name in names if _UNNAMED.fullmatch(name))
            storage._begin_generation(storage._log.snapshot)
            storage._unlink_all(f"{generation:020d}.wal" for generation in generations[:-1])
            unless_opened.pop_all()
        return storage

    @property
    def failed(self) -> JetstreamError | None:
        """The error after which nothing works any more."""
        return self._failed

    @property
    def log_bytes(self) -> int:
        """See `Storage.log_bytes`."""
        return self._synced_end - len(self._log.snapshot.payload)

    def load(self) -> Stored:
        """See `Storage.load`."""
        self._refuse_if_failed()
        return self._log.stored()

    def append(self, entries: Sequence[Entry], hard_state: HardState | None = None) -> None:
        """See `Storage.append`."""
        self._refuse_if_failed()
        if not entries and hard_state in (None, self._log.hard_state):
            return
        assert all(len(entry.payload) <= ENTRY_BYTES_MAX for entry in entries), "an entry is too large"
        contents = FrameContents(tuple(entries), hard_state)
        problem = self._log.contradiction(contents)
        assert problem is None, problem
        frame = encode_frame(contents, self._generation, self._synced_end)
        assert len(frame) <= APPEND_BYTES_MAX, f"an append of {len(frame)} bytes"
        self._write_durably(frame)
        self._log.add(contents)
        self._note_synced()

    def compact(self, snapshot: Snapshot) -> None:
        """See `Storage.compact`."""
        self._refuse_if_failed()
        known = self._log.snapshot.index
        assert snapshot.index >= known, f"S1: from snapshot {known} back to {snapshot.index}"
        assert snapshot.term <= self._log.hard_state.term, f"S2: snapshot of term {snapshot.term}"
        self._begin_generation(snapshot)

    def close(self) -> None:
        """See `Storage.close`; also makes the synced mark durable, so that any later damage shows."""
        was_usable = self._failed is None
        self._failed = self._failed or StorageError("the metadata log is closed")
        try:
            if was_usable and self._mark is not None:
                self._mark.sync()
        finally:
            self._close_files()

    # --- recovery -----------------------------------------------------------------------------------

    def _recover(self, *, has_mark: bool) -> None:
        file = self._file = self._disk.open(self._path(self._generation))
        if has_mark:
            self._mark = SyncedMark(self._disk.open(self._mark_path))
        mark = self._mark.read() if self._mark else NOTHING
        if mark.generation > self._generation:
            raise CorruptDataError(
                f"metadata log {self._generation} was followed by {mark.generation}, which is missing"
            )
        known = mark.length if mark.generation == self._generation else 0
        data = file.read(0, file.size())
        found = scan(data, self._generation, known)
        for contents in found.frames:
            problem = self._log.contradiction(contents)
            if problem is not None:
                raise CorruptDataError(f"metadata log {self._generation} contradicts itself: {problem}")
            self._log.add(contents)
        self.recovery = StorageReport(self._generation, len(found.frames) - 1, len(data) - found.end)

    def _unlink_all(self, names: Iterable[str]) -> None:
        """Remove what an interrupted compaction left: files without a name yet, generations before this."""
        for name in names:
            self._disk.unlink(f"{self._directory}/{name}")

    # --- writing ------------------------------------------------------------------------------------

    def _write_durably(self, frame: bytes) -> None:
        """Append one frame and sync; a full disk is undone."""
        file, position = self._file, self._synced_end
        assert file is not None, "an open storage has its file"
        full: DiskFull | None = None
        with self._fatal_if_raised("append"):
            try:
                file.write((frame,), position)
            except DiskFull as error:
                full = error
                file.truncate(position)
            else:
                file.sync()
                self._synced_end = position + len(frame)
        if full is not None:
            raise full

    def _begin_generation(self, snapshot: Snapshot) -> None:
        """Make the next generation durable beside the present one, name it, then drop the old."""
        generation = self._generation + 1
        contents = FrameContents(self._log.behind(snapshot), self._log.hard_state, snapshot)
        frame = encode_frame(contents, generation, 0)
        file = self._named_file(self._path(generation), frame)
        with self._fatal_if_raised("compact"):
            self._disk.sync_dir(self._directory)
            old_file, self._file = self._file, file
            old_generation, self._generation = self._generation, generation
            self._synced_end = len(frame)
            self._log.add(contents)
            if self._mark is None:
                self._create_mark()
            if old_file is not None:
                old_file.close()
                self._disk.unlink(self._path(old_generation))
        self._note_synced()

    def _named_file(self, path: str, frame: bytes) -> MetadataFile:
        """Create ``path`` holding ``frame``, durable but for its entry; a full disk is undone."""
        new_path = path + _NEW
        with self._fatal_if_raised("compact"):
            file: MetadataFile | None = None
            try:
                file = self._disk.create(new_path)
                file.write((frame,), 0)
                file.sync()
                self._disk.rename(new_path, path)
            except DiskFull as error:
                full = error
                if file is not None:
                    file.close()
                    self._disk.unlink(new_path)
            else:
                return file
        raise full

    def _create_mark(self) -> None:
        self._mark = SyncedMark(self._disk.create(self._mark_path))
        for _ in range(SLOTS):  # all of them now, so that no later note needs space
            self._mark.write(Mark(self._generation, self._synced_end))
        self._mark.sync()
        self._disk.sync_dir(self._directory)

    def _note_synced(self) -> None:
        """Note the durable length; a failure spoils the next call, not this one, which is durable.

        On a full disk the mark stays as it was: lower than it could be, and so still true.
        """
        assert self._mark is not None, "an open storage has its mark"
        with contextlib.suppress(DiskFull):
            try:
                self._mark.write(Mark(self._generation, self._synced_end))
            except StorageError as error:
                self._failed = error

    @contextlib.contextmanager
    def _fatal_if_raised(self, action: str) -> Iterator[None]:
        """Leave the storage failed if the block does not end, for whatever reason."""
        self._failed = StorageError(f"a call to {action} did not end; what is on disk is unknown")
        try:
            yield
        except JetstreamError as error:
            self._failed = error
            raise
        self._failed = None

    def _refuse_if_failed(self) -> None:
        if self._failed is not None:
            raise StorageError(f"the metadata log has failed: {self._failed.description}") from self._failed

    def _close_files(self) -> None:
        mark, file = self._mark, self._file
        self._mark = self._file = None
        with contextlib.ExitStack() as closing:
            if file is not None:
                closing.callback(file.close)
            if mark is not None:
                closing.callback(mark.close)

    def _path(self, generation: int) -> str:
        return f"{self._directory}/{generation:020d}.wal"

    @property
    def _mark_path(self) -> str:
        return f"{self._directory}/{MARK_NAME}"


def is_begun(disk: MetadataDisk, directory: str) -> bool:
    """Return whether a storage was ever opened in ``directory``: a crash may have come before that."""
    names = disk.listdir(directory) if disk.exists(directory) else []
    return any(name == MARK_NAME or _LOG_NAME.fullmatch(name) for name in names)
