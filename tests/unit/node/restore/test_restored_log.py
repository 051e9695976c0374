import hashlib

import pytest

from envelope.errors import DamagedBackup
from envelope.types import LeaderEpoch, Offset
from jetstream.client.backup.plan import ObjectCut
from jetstream.log.disk.port import Disk, make_directories
from jetstream.log.format.batch import verified_batches
from jetstream.log.log import Log, LogConfig
from jetstream.node.disk.history_file import NOTHING_NOTED
from jetstream.node.restore.restored_log import (
    restored_publishers,
    restored_segments,
    write_segment,
    write_state_of,
)
from jetstream.tier.backups.backup_store import BackupStore
from jetstream.tier.backups.manifest import BackedUpStream, BackupObject
from tests.support.backup_manifests import WHOLE, backed_up_stream
from tests.support.logs import DIRECTORY, NOW, SMALL, file_content, filled, stored_values
from tests.support.memory_disk import MemoryDisk
from tests.support.object_stores import MemoryStore


def backed_up(log: Log, store: BackupStore, *positions: int) -> BackedUpStream:
    """Back up a log as several backups would, each up to one of these offsets."""
    objects: list[BackupObject] = []
    for end in (*positions, log.log_end_offset):
        begun = objects[-1].next if objects else log.log_start_offset
        cut = ObjectCut(begun, is_first=not objects)
        while cut.position < end:
            body = memoryview(log.reader.read(cut.position, 1, log.log_end_offset))
            complete = (*cut.add(body, verified_batches(body)), *cut.finish())
            objects += [each.described(store.put_object(each.chunks(), ())[0]) for each in complete]
    return backed_up_stream(*objects, start=log.log_start_offset, end=log.log_end_offset)


def restore(disk: Disk, stream: BackedUpStream, store: BackupStore) -> Log:
    make_directories(disk, DIRECTORY)
    segments = restored_segments(stream)
    for segment in segments:
        write_segment(disk, DIRECTORY, segment, store)
    write_state_of(disk, DIRECTORY, stream, segments[-1])
    return Log.open(disk, DIRECTORY, LogConfig(), NOW)


@pytest.mark.parametrize("start", [0, 1, 17])
def test_a_log_is_put_together_from_objects_of_any_cut(start: int) -> None:
    disk, copy = MemoryDisk(), MemoryDisk()
    log = filled(disk, 40, SMALL)
    log.note_committed(log.log_end_offset)
    log.truncate_before(Offset(start), log.log_end_offset)
    assert len(log.reader.segments) > 2
    store = BackupStore(MemoryStore().store)
    stream = backed_up(log, store, *range(start + 1, 40, 3))
    assert stream.problem() is None
    restored = restore(copy, stream, store)
    assert restored.recovery.problems == ()
    assert restored.recovery.clean
    assert (restored.log_start_offset, restored.log_end_offset) == (start, 40)
    assert stored_values(restored) == stored_values(log)
    assert restored.reader.epochs.last == log.reader.epochs.last
    assert [segment.base for segment in restored.reader.segments] == [
        segment.base if number or not start else restored.reader.segments[0].base
        for number, segment in enumerate(log.reader.segments)
    ]
    for segment in log.reader.segments[1:-1]:
        assert file_content(copy, segment.path) == file_content(disk, segment.path)
    restored.writer.begin_epoch(LeaderEpoch(1 << 20), NOW)
    restored.close()


def test_an_empty_log_goes_on_where_it_ended() -> None:
    disk = MemoryDisk()
    restored = restore(disk, backed_up_stream(start=7, end=7), BackupStore(MemoryStore().store))
    assert (restored.log_start_offset, restored.log_end_offset) == (7, 7)
    assert restored.recovery.problems == ()


@pytest.mark.parametrize("position", [0, 600, -1])
def test_a_segment_of_damaged_objects_is_not_written_to_its_end(position: int) -> None:
    memory = MemoryStore()
    store = BackupStore(memory.store)
    stream = backed_up(filled(MemoryDisk(), 40, SMALL), store)
    path = next(path for path in memory.objects if stream.objects[0].sha256 in path)
    content = bytearray(memory.objects[path])
    content[position] ^= 1
    memory.objects[path] = bytes(content)
    assert hashlib.sha256(content).hexdigest() != stream.objects[0].sha256
    with pytest.raises(DamagedBackup):
        restore(MemoryDisk(), stream, store)


def test_what_publishers_have_done_is_noted_but_for_records_that_are_not_in_the_backup() -> None:
    assert restored_publishers(backed_up_stream()) == NOTHING_NOTED
    noted = restored_publishers(WHOLE)
    assert noted.last.end == 0, "all records are searched"
    assert noted.last.txid is not None
    assert tuple(noted.last.txid) == (3, 20, 7)
    [(session, last)] = noted.sessions
    assert (session, last.sequence, last.offset, last.is_gapless) == (b"\xe9", 4, 25, True)
