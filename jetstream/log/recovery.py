"""From a directory to a log that may be written: the normal start, clean or not.

Theory of operation: bytes of the last write group may be torn, because they were not acknowledged.
Everything before had been synced, so damage there is corruption: it is kept, reported and refused. Three
witnesses prove how far synced bytes reach, and the furthest is believed:

* a good batch with ``GROUP_START``: all before it had been synced when it was written (for a log that was
  written by a follower see `SegmentScan.proven_end`);
* the checkpoint's ``synced_end``;
* the start of the newest epoch, which is recorded only after all before it was synced.

Damage that begins below that offset is corruption; the first damage at or above it is where the torn group
is cut. Only the last segment can be torn: a segment is synced and sealed before the next one is created.

The checkpoint names the active segment, as every roll writes one. If that file is missing, more may have
followed than the checkpoint knows, and the end of the log is uncertain.

A reset that a crash has stopped is finished before all this (`jetstream.log.state.reset`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from envelope.errors import CorruptDataError, JetstreamError
from envelope.types import FilePosition, LeaderEpoch, Offset, TimestampUs
from jetstream.log.disk.port import Disk, File, make_directories
from jetstream.log.disk.state_file import NEW_SUFFIX, Json, decode_state, read_whole
from jetstream.log.format.schema import END_OF_STREAM
from jetstream.log.segments.corrupt_ranges import OffsetRange, above, with_range
from jetstream.log.segments.index import BatchIndex
from jetstream.log.segments.index_file import read_index, read_summary, remove_index
from jetstream.log.segments.scan import FIRST_BATCH, Damage, SegmentScan, scan_segment
from jetstream.log.segments.segment import INDEX_SUFFIX, Segment, base_of, segment_path
from jetstream.log.state.checkpoint import CHECKPOINT_FILE, Checkpoint, decode_checkpoint
from jetstream.log.state.compaction_state import CompactionState, recovered_compaction
from jetstream.log.state.epochs import EPOCHS_FILE, EpochHistory, EpochStart, decode_epochs, is_followed
from jetstream.log.state.reset import RESET_FILE, finish_reset, is_resetting
from jetstream.log.state.rewrite_state import recovered_rewritten_end


def holds_log(disk: Disk, directory: str) -> bool:
    """Return whether there is a log in ``directory``, in any state: every opening leaves a segment.

    Raises:
        StorageError: the disk refused.
    """
    if not disk.exists(directory):
        return False
    names = disk.listdir(directory)
    return RESET_FILE in names or any(base_of(name) is not None for name in names)


Verify = Literal["tail", "full"]
"""The batches that an opening reads: those after the last index, or all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The report of the opening of a log.

    Attributes:
        opened_at: wall clock.
        clean: the log had been closed cleanly.
        scanned_bytes: segment bytes that were read and checked.
        cut_bytes: bytes of a torn last write group that were cut off.
        problems: findings for people, in order; empty is normal.
    """

    opened_at: TimestampUs
    clean: bool = False
    scanned_bytes: int = 0
    cut_bytes: int = 0
    problems: tuple[str, ...] = ()


class Recovery:
    """Recovers one directory once; `run`, then read the attributes.

    Attributes:
        segments: at least one; the last has no torn bytes.
        file: of the last segment, open for appending; None if there is no such file.
        log_start_offset: first kept offset.
        log_end_offset: next offset to be written, as far as it is known.
        corrupt_ranges: offsets whose bytes are damaged or missing.
        end_certain: whether `log_end_offset` is; otherwise nothing may be appended.
        epochs: the epoch history.
        followed: the last batches may have been written by a follower.
        checkpoint: the recorded one, if any.
        compaction: progress of compaction.
        rewritten_end: below it the sealed rewrite has been.
        report: for people.
    """

    def __init__(self, disk: Disk, directory: str, now: TimestampUs, verify: Verify) -> None:
        self._disk = disk
        self._directory = directory
        self._verify = verify
        self.segments: tuple[Segment, ...] = ()
        self.file: File | None = None
        self.log_start_offset = Offset(0)
        self.log_end_offset = Offset(0)
        self.corrupt_ranges: tuple[OffsetRange, ...] = ()
        self.end_certain = True
        self.epochs = EpochHistory()
        self.followed = False
        self.checkpoint: Checkpoint | None = None
        self.compaction = CompactionState()
        self.rewritten_end = Offset(0)
        self.report = RecoveryReport(opened_at=now)

    def run(self) -> None:
        """Recover; returns when all that is kept is durable.

        Raises:
            StorageError, FsyncFailed, DiskFull: the disk refused; nothing was lost by trying.
            Unsupported: the log was written by a newer version.
        """
        try:
            self._run()
        except JetstreamError:
            if self.file is not None:
                self.file.close()
            raise

    def _run(self) -> None:
        make_directories(self._disk, self._directory)
        self._read_state()
        bases = self._remaining_bases()
        if bases:
            self._find_start(bases[0])
            sealed = [self._open_sealed(base, after) for base, after in pairwise(bases)]
            self.segments = (*sealed, self._open_last(bases[-1]))
        else:
            self._begin()
        self._recover_epochs()
        self.compaction, problem = recovered_compaction(self._disk, self._directory, self.log_end_offset)
        if problem is not None:
            self._note(problem)
        self.rewritten_end, problem = recovered_rewritten_end(
            self._disk, self._directory, self.log_end_offset
        )
        if problem is not None:
            self._note(problem)
        self.corrupt_ranges = above(self.corrupt_ranges, self.log_start_offset)

    # --- state files ------------------------------------------------------------------------------

    def _read_state(self) -> None:
        try:
            if is_resetting(self._disk, self._directory):
                finish_reset(self._disk, self._directory)
        except CorruptDataError as error:
            self._note(f"the reset file is unusable: {error}")
        for name in self._disk.listdir(self._directory):
            if name.endswith(NEW_SUFFIX):
                self._disk.unlink(f"{self._directory}/{name}")
        try:
            state = self._state(CHECKPOINT_FILE)
            self.checkpoint = decode_checkpoint(state) if state is not None else None
        except CorruptDataError as error:
            self._note(f"the checkpoint is unusable: {error}")
        try:
            state = self._state(EPOCHS_FILE)
            if state is not None:
                self.epochs, self.followed = decode_epochs(state), is_followed(state)
        except CorruptDataError as error:
            self._note(f"the epochs file is unusable: {error}")
        if self.checkpoint is not None:
            self.log_start_offset = self.checkpoint.log_start_offset
            self.report = replace(self.report, clean=self.checkpoint.clean)

    def _state(self, name: str) -> dict[str, Json] | None:
        path = f"{self._directory}/{name}"
        return decode_state(read_whole(self._disk, path)) if self._disk.exists(path) else None

    @property
    def _synced_end(self) -> Offset:
        """Offset below which the state files prove that bytes had been synced."""
        by_checkpoint = self.checkpoint.synced_end if self.checkpoint is not None else Offset(0)
        by_epoch = self.epochs.starts[-1].start if self.epochs.starts else Offset(0)
        return max(by_checkpoint, by_epoch)

    @property
    def _end_recorded(self) -> bool:
        """Whether a clean close recorded the log's end, so that appending may go on behind missing bytes."""
        return (
            self.checkpoint is not None
            and self.checkpoint.clean
            and self.checkpoint.synced_end == self._synced_end
        )

    # --- segments ---------------------------------------------------------------------------------

    def _remaining_bases(self) -> list[Offset]:
        """Return the segments' bases after finishing a removal that a crash may have stopped."""
        names = self._disk.listdir(self._directory)
        bases = sorted(base for base in map(base_of, names) if base is not None)
        while len(bases) > 1 and bases[1] <= self.log_start_offset:
            self._disk.unlink(segment_path(self._directory, bases.pop(0)))
        # The removals are not ordered: of an index and its segment either may be left.
        indexes = {Segment(self._disk, self._directory, base).index_path for base in bases}
        for name in names:
            if name.endswith(INDEX_SUFFIX) and (path := f"{self._directory}/{name}") not in indexes:
                self._disk.unlink(path)
        return bases

    def _find_start(self, first_base: Offset) -> None:
        if self.checkpoint is None:
            self.log_start_offset = first_base
        elif first_base > self.log_start_offset:
            self._lose(self.log_start_offset, first_base, f"the log begins at {first_base}")

    def _begin(self) -> None:
        self.log_end_offset = self._synced_end
        if self._synced_end > 0:
            self._lose(self.log_start_offset, self._synced_end, "all segments are missing")
            self.end_certain = self._end_recorded
        segment = Segment(self._disk, self._directory, self.log_end_offset)
        if self.end_certain:
            self.file = self._disk.create(segment.path)
            self._disk.sync_dir(self._directory)
        self.segments = (segment,)

    def _open_sealed(self, base: Offset, next_base: Offset) -> Segment:
        """Describe a segment that is not the last, by its index's header or else by its bytes."""
        segment = Segment(self._disk, self._directory, base)
        summary = read_summary(self._disk, segment.index_path) if self._verify == "tail" else None
        with segment.leased() as file:
            size = file.size()
            if summary is not None and summary.fits(base, next_base, size - len(END_OF_STREAM)):
                segment.describe_summary(summary, size)
                return segment
            scan = self._scan(file, base, None)
        segment.describe_scan(scan, size)
        self._judge_sealed(segment, scan, next_base)
        segment.sealed, segment.next = True, next_base
        segment.save_index(len(scan.index))
        segment.unload_index()
        return segment

    def _judge_sealed(self, segment: Segment, scan: SegmentScan, next_base: Offset) -> None:
        """Report the damage of a segment that was synced as a whole: all of it is corruption."""
        for damage in scan.damages:
            end = damage.next if damage.next is not None else next_base
            self._lose(damage.base, end, _describe(segment, damage))
        segment.index_doubtful = scan.next != next_base
        if scan.next < next_base:
            self._lose(scan.next, next_base, f"segment {segment.base} ends at {scan.next}, not {next_base}")
        elif scan.next > next_base:
            self._lose(next_base, scan.next, f"segment {segment.base} reaches into segment {next_base}")
        elif not scan.sealed:
            self._note(f"segment {segment.base} has no end-of-stream marker")

    def _open_last(self, base: Offset) -> Segment:
        """Open the segment that may be torn, cut it if it is, and keep it open."""
        segment = Segment(self._disk, self._directory, base)
        self.file = file = self._disk.open(segment.path)
        if not self.report.clean:
            # Bytes that a killed process left in the page cache become durable before they count, and bytes
            # that the medium never got (a failed write-back) must not be read from the cache.
            file.sync()
            file.drop_cache(self.checkpoint.position_in(base) if self.checkpoint is not None else 0)
            self._disk.sync_dir(self._directory)
        known = None
        if self._verify == "tail":
            known = read_index(self._disk, segment.index_path, base, file)
        scan = self._scan(file, base, known)
        self._judge_last(segment, file, scan)
        return segment

    def _judge_last(self, segment: Segment, file: File, scan: SegmentScan) -> None:
        """Cut a torn last group, report corruption, and find the log's end."""
        synced_end = max(self._synced_end, scan.proven_end(followed=self.followed))
        torn = next((damage for damage in scan.damages if damage.base >= synced_end), None)
        size = file.size()
        if torn is not None:
            size = self._cut(segment, file, torn)
            scan.damages = [damage for damage in scan.damages if damage.base < synced_end]
            scan.index = scan.index.head(scan.index.find(torn.base))
            scan.next, scan.sealed = torn.base, False
            scan.data_end = FilePosition(min(scan.data_end, size))
        segment.describe_scan(scan, size)
        for damage in scan.damages:
            end = damage.next if damage.next is not None else self._synced_end
            self._lose(damage.base, end, _describe(segment, damage))
        self.log_end_offset = scan.next
        active = self.checkpoint.segment_base if self.checkpoint is not None else segment.base
        is_missing = segment.base < active == scan.next  # what followed is unknown
        if scan.next < self._synced_end or is_missing:
            problem = f"the log ends at {scan.next}, not {self._synced_end}"
            self._lose(scan.next, self._synced_end, f"segment {active} is missing" if is_missing else problem)
            self.log_end_offset = self._synced_end
            self.end_certain = self._end_recorded
            segment.sealed = True

    def _cut(self, segment: Segment, file: File, torn: Damage) -> int:
        """Cut the torn group off, durably, before anything else is done; return the file's new size."""
        size = file.size()
        # A schema message without a batch was written with the torn one, and may be torn too.
        kept = torn.position if torn.position > FIRST_BATCH else FilePosition(0)
        remove_index(self._disk, segment.index_path)
        file.truncate(kept)
        file.sync()
        self._note(f"cut a torn write group of {size - kept} bytes: {_describe(segment, torn)}")
        self.report = replace(self.report, cut_bytes=size - kept)
        return kept

    def _scan(self, file: File, base: Offset, known: BatchIndex | None) -> SegmentScan:
        start = known[len(known) - 1].end if known is not None else FilePosition(0)
        scanned = self.report.scanned_bytes + file.size() - start
        self.report = replace(self.report, scanned_bytes=scanned)
        return scan_segment(file, base, known)

    # --- epochs -----------------------------------------------------------------------------------

    def _recover_epochs(self) -> None:
        """Complete the epochs from the batches where the file lacks one."""
        newest = max(segment.last_epoch for segment in self.segments)
        if newest and self.epochs.end_of(newest, self.log_end_offset) is None:
            self._note(f"the epochs file does not know epoch {newest}: derived from the batches")
            self.epochs = self.epochs.merged(tuple(self._written_epochs()))

    def _written_epochs(self) -> Iterator[EpochStart]:
        newest = LeaderEpoch(0)
        for segment in self.segments:
            index = segment.load_index()
            for row in range(len(index)):
                entry = index[row]
                if entry.leader_epoch > newest:
                    newest = entry.leader_epoch
                    yield EpochStart(newest, entry.base, entry.max_timestamp)

    # --- findings ---------------------------------------------------------------------------------

    def _lose(self, start: Offset, end: Offset, problem: str) -> None:
        """Report a problem and refuse ``[start, end)``, which may be empty."""
        self._note(f"{problem}; offsets {start} to {end} are refused" if start < end else problem)
        self.corrupt_ranges = with_range(self.corrupt_ranges, start, end)

    def _note(self, problem: str) -> None:
        self.report = replace(self.report, problems=(*self.report.problems, problem))


def _describe(segment: Segment, damage: Damage) -> str:
    return f"segment {segment.base} bytes {damage.position} to {damage.end}: {damage.reason}"
