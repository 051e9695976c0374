"""From the objects of a backup to the directory of a stream's log; blocks."""

from collections.abc import Iterator
from dataclasses import dataclass

from envelope.types import Buffer, FilePosition, LeaderEpoch, Offset
from jetstream.client.read.records import to_timestamp
from jetstream.ingest.publishers.history import TxidMark
from jetstream.ingest.publishers.sessions import PublisherSession
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import write_state
from jetstream.log.format.schema import END_OF_STREAM, SCHEMA_MESSAGE
from jetstream.log.segments.segment import segment_path
from jetstream.log.state.checkpoint import CHECKPOINT_FILE, Checkpoint
from jetstream.log.state.epochs import EPOCHS_FILE
from jetstream.node.disk.history_file import NOTHING_NOTED, LastTxid, PublisherState, put_note
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.backups.manifest import BackedUpStream, BackupObject


@dataclass(frozen=True, slots=True)
class RestoredSegment:
    """A segment that is to be written.

    Attributes:
        base: its first offset.
        objects: with its batches, in order; none of an empty log.
        is_sealed: another one follows.
    """

    base: Offset
    objects: tuple[BackupObject, ...]
    is_sealed: bool

    @property
    def data_end(self) -> FilePosition:
        """Position after its last batch; 0 in an empty file."""
        around = len(SCHEMA_MESSAGE) + len(END_OF_STREAM)
        size = sum(each.size - around for each in self.objects)
        return FilePosition(len(SCHEMA_MESSAGE) + size if self.objects else 0)


def restored_segments(stream: BackedUpStream) -> list[RestoredSegment]:
    """Return the segments of a stream: those that it had, but for records that had gone."""
    groups: list[list[BackupObject]] = []
    for each in stream.objects:
        if each.begins_segment or not groups:
            groups.append([])
        groups[-1].append(each)
    if not groups:
        return [RestoredSegment(stream.end, (), is_sealed=False)]
    last = len(groups) - 1
    return [
        RestoredSegment(group[0].base, tuple(group), is_sealed=number < last)
        for number, group in enumerate(groups)
    ]


def restored_publishers(stream: BackedUpStream) -> PublisherState:
    """Return what is to be known of a stream's publishers beside what its records tell: all are searched."""
    txid = stream.publishers.last_txid
    if txid is not None and txid.offset >= stream.end:
        txid = None  # an unclean election has taken its record back
    mark = None if txid is None else TxidMark(LeaderEpoch(txid.leader_epoch), Offset(txid.offset), txid.txid)
    sessions = (
        (
            each.session.encode("latin-1"),
            PublisherSession(each.sequence, Offset(each.offset), to_timestamp(each.time), each.gapless),
        )
        for each in sorted(stream.publishers.sessions, key=lambda each: (each.time, each.offset))
        if each.offset < stream.end  # an unclean election may have taken others back while it was copied
    )
    return PublisherState(LastTxid(Offset(0), mark), tuple(sessions))


def write_segment(disk: Disk, directory: str, segment: RestoredSegment, store: BackupStore) -> int:
    """Write a segment's file, durable but for its entry in ``directory``, and return its bytes.

    Raises:
        DamagedBackup: an object is missing, or has other bytes than were written.
        TierUnavailable: the store refused.
        DiskFull, StorageError, FsyncFailed: the disk refused.
    """
    file = disk.create(segment_path(directory, segment.base))
    try:
        position = 0
        for chunk in _content(segment, store):
            position += file.write((chunk,), FilePosition(position))
        file.sync()
        file.drop_cache(0)  # there may be more than memory holds, and to make room costs as much as to write
    finally:
        file.close()
    return position


def write_state_of(disk: Disk, directory: str, stream: BackedUpStream, last: RestoredSegment) -> None:
    """Write what makes the segments in ``directory`` a log that was closed cleanly; durable on return."""
    publishers = restored_publishers(stream)
    if publishers != NOTHING_NOTED:
        put_note(disk, directory, publishers)
    epochs = stream.history.encode(followed=False)
    write_state(disk, f"{directory}/{EPOCHS_FILE}", epochs)
    checkpoint = Checkpoint(
        log_start_offset=stream.start,
        synced_end=stream.end,
        segment_base=last.base,
        synced_position=last.data_end,
        last_epoch=stream.last_epoch,
        clean=True,
        committed=stream.end,
    )
    write_state(disk, f"{directory}/{CHECKPOINT_FILE}", checkpoint.encode())
    disk.sync_dir(directory)


def _content(segment: RestoredSegment, store: BackupStore) -> Iterator[Buffer]:
    if segment.objects:
        yield SCHEMA_MESSAGE
    for each in segment.objects:
        yield from _batches(each, store)
    if segment.is_sealed:
        yield END_OF_STREAM


def _batches(each: BackupObject, store: BackupStore) -> Iterator[Buffer]:
    """Yield the bytes between the schema message and the end marker of an object."""
    begun, end = len(SCHEMA_MESSAGE), each.size - len(END_OF_STREAM)
    position = 0
    for chunk in store.chunks(each):
        piece = memoryview(chunk)[max(0, begun - position) : max(0, end - position)]
        position += len(chunk)
        if len(piece):
            yield piece
