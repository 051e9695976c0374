"""What a follower has learnt of its log: as much as a start would read back, at any time."""

from contextlib import suppress
from datetime import timedelta

import pytest

from envelope.errors import CorruptDataError, JetstreamError, OutOfResources, StorageError, StreamOffline
from envelope.headers import SEQUENCE, SEQUENCE_AFTER, SESSION
from envelope.limits import SESSION_ID_BYTES_MAX, SESSIONS_MAX
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.publishers.history import PublisherHistory, TxidMark
from jetstream.ingest.publishers.sessions import PublisherSession, PublisherSessions
from jetstream.log.format.batch import BatchFlags, encode, verified_batches
from jetstream.log.format.message import record_batch_fields
from jetstream.node.disk.appends import FollowerAppend
from jetstream.node.disk.history_file import (
    NOTE_FILE,
    LastTxid,
    PublisherState,
    decode_note,
    encode_note,
    sessions_of,
)
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.disk.open_log import OpenedLog, begin_reign, open_log
from jetstream.node.runtime.clock import SystemClock
from jetstream.replica.wire import StartOverMessage, WireReader
from jetstream.replica.wire import encode as encode_message
from tests.support.logs import DIRECTORY, NOW, Record, file_content, records_batch
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)
from tests.support.opened_logs import CONFIG, WINDOW_US, follow, frame, opened, record, take_in
from tests.support.replica_sessions import fed


def known(history: PublisherHistory, count: int = 40) -> dict[str, object]:
    """Return all that a sequencer could ask, if all was committed as soon as it was stored."""
    history.dedupe.fates.hold_from(history.end)
    history.dedupe.expire(history.last_timestamp)
    return {
        "ids": [history.dedupe.lookup(b"id%d" % number) for number in range(count)],
        "last": (history.last_timestamp, history.last_txid, history.id_before(history.end)),
        "high watermark": history.high_watermark,
    }


FRAMES = (
    frame(0, [record(0, 5), record(1)]),
    frame(2, [record(2), record(3, 7)]),
    *(frame(number, [record(number, with_id=number % 3 > 0)]) for number in range(4, 20)),
)


@pytest.mark.parametrize("count", range(len(FRAMES) + 1))
def test_what_was_taken_in_is_what_a_start_reads_back(count: int) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    for each in FRAMES[: count // 2]:
        follow(log, each)
    follow(log, *FRAMES[count // 2 : count])
    taken_in = known(log.history), log.note.latest
    log.rebuild()
    assert (known(log.history), log.note.latest) == taken_in
    again = opened(disk.power_loss(nothing_survives))
    assert (known(again.history), again.note.latest) == taken_in


def test_taking_in_reads_nothing_back() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES)
    begin_reign(log, LeaderEpoch(2), NOW)
    assert not [call for call in disk.trace if call.startswith("read")]
    assert (log.log.reader.last_epoch, log.history.dedupe.lookup(b"id19")) == (2, 19)


def test_only_what_is_stored_is_taken_in_and_only_once() -> None:
    log = opened(MemoryDisk())
    follow(log, FRAMES[0])
    log.replay_batches(verified_batches(FRAMES[0]))
    log.replay_batches(verified_batches(FRAMES[1]))
    assert log.history.dedupe.lookup(b"id2") is None
    assert log.note.latest == LastTxid(Offset(2), TxidMark(LeaderEpoch(1), Offset(0), 5))
    follow(log, FRAMES[1])
    assert log.history.dedupe.lookup(b"id2") == 2


@pytest.mark.parametrize("end", [0, 2, 4, 9])
def test_what_was_cut_is_not_remembered(end: int) -> None:
    log = opened(MemoryDisk())
    follow(log, *FRAMES)
    log.log.truncate_to(Offset(end))
    log.settle()
    fresh = opened(MemoryDisk())
    follow(fresh, *FRAMES[: {0: 0, 2: 1, 4: 2, 9: 7}[end]])
    assert known(log.history) == known(fresh.history)
    assert log.note.latest == fresh.note.latest
    follow(log, frame(end, [record(30, 40)]))
    assert (log.history.dedupe.lookup(b"id30"), log.history.last_txid) == (end, 40)


LONG = CONFIG.model_copy(update={"dedupe_window": timedelta(hours=1)})
SESSION_FRAMES = tuple(
    frame(
        20 + number,
        [
            Record(
                headers=[(SESSION, b"p"), (SEQUENCE, b"%d" % number), (SEQUENCE_AFTER, b"%d" % (number - 1))],
                txid=50 + number,
                timestamp=NOW + 100 * (20 + number),
            )
        ],
    )
    for number in range(1, 4)
)


@pytest.mark.parametrize("end", [2, 4, 9, 20, 22, 23])
@pytest.mark.parametrize("is_noted", [False, True])
def test_a_log_that_was_cut_forgets_without_reading_anything(end: int, is_noted: bool) -> None:
    frames = (*FRAMES, frame(20, [record(20)]), *SESSION_FRAMES)
    disk = MemoryDisk()
    log, fresh = (open_log(each, DIRECTORY, LONG, NOW, "tail") for each in (disk, MemoryDisk()))
    follow(log, *frames)
    if is_noted:
        note_due(log)
        assert noted(log, 24)
    follow(fresh, *frames[: {2: 1, 4: 2, 9: 7, 20: 18, 22: 20, 23: 21}[end]])
    log.log.truncate_to(Offset(end))
    reads = [call for call in disk.trace if call.startswith("read")]
    log.settle()
    assert [call for call in disk.trace if call.startswith("read")] == reads
    assert known(log.history) == known(fresh.history)
    assert log.note.latest == fresh.note.latest
    assert log.history.sessions.find(b"p") == fresh.history.sessions.find(b"p")
    follow(log, frame(end, [record(30, 90)]))
    assert (log.history.dedupe.lookup(b"id30"), log.history.last_txid) == (end, 90)
    log.log.truncate_to(Offset(end))
    log.settle()
    again = open_log(disk.power_loss(nothing_survives), DIRECTORY, LONG, NOW, "tail")
    assert (known(again.history), again.note.latest) == (known(fresh.history), fresh.note.latest)
    assert again.history.sessions.find(b"p") == fresh.history.sessions.find(b"p")
    follow(again, frame(end, [record(30, 90)]))
    assert (again.history.dedupe.lookup(b"id30"), again.history.last_txid) == (end, 90)


def test_a_log_that_is_cut_behind_its_note_is_read_back() -> None:
    """Its records were not asked what they mean for their sessions, as the note had said so."""
    disk = MemoryDisk()
    log = open_log(disk, DIRECTORY, LONG, NOW, "tail")
    follow(log, *FRAMES, frame(20, [record(20)]), *SESSION_FRAMES)
    note_due(log)
    assert noted(log, 24)
    again = open_log(disk.power_loss(nothing_survives), DIRECTORY, LONG, NOW, "tail")
    again.log.truncate_to(Offset(22))
    again.settle()
    session = again.history.sessions.find(b"p")
    assert session is not None
    assert (session.sequence, session.offset, again.history.last_txid) == (1, 21, 51)


def test_what_a_leaders_note_says_outlives_a_cut() -> None:
    log = open_log(MemoryDisk(), DIRECTORY, LONG, NOW, "tail")
    follow(log, *FRAMES, frame(20, [record(20)]), *SESSION_FRAMES)
    last = PublisherSession(9, Offset(20), TimestampUs(NOW + 1), is_gapless=True)
    log.take_note(
        PublisherState(LastTxid(Offset(21), TxidMark(LeaderEpoch(1), Offset(20), 40)), ((b"p", last),))
    )
    log.log.truncate_to(Offset(21))
    log.settle()
    assert log.history.sessions.find(b"p") == last


def test_a_log_that_begins_anew_remembers_nothing_and_learns_on() -> None:
    log = opened(MemoryDisk())
    follow(log, *FRAMES)
    log.log.reset_to(Offset(100))
    log.rebuild()
    assert known(log.history)["ids"] == [None] * 40
    follow(log, frame(100, [record(30)], 3))
    assert log.history.dedupe.lookup(b"id30") == 100


# --- the note of the last txid ----------------------------------------------------------------------------


def noted(log: OpenedLog, high_watermark: int) -> bool:
    """Let a note be written if the upkeep of the log finds it due; what is committed was so soon."""
    log.fates.observe(Offset(high_watermark), TimestampUs(0))
    log.apply_observed()
    upkeep = Upkeep(log.log, SystemClock(), lambda: Offset(high_watermark), lambda: log.note)
    if not upkeep.note_due():
        return False
    upkeep.write_note()
    return True


def note_due(log: OpenedLog) -> None:
    """Let so much pass that a note is due."""
    log.note.appended(log.log.log_end_offset, None, 1 << 30)


def test_nothing_is_noted_of_what_is_not_committed() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES)
    note_due(log)
    assert not noted(log, 19)
    assert noted(log, 20)
    assert b'"end":20,' in file_content(disk, f"{DIRECTORY}/{NOTE_FILE}")
    assert not noted(log, 20)


def test_a_start_knows_what_is_not_committed_however_old_it_is() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    old = frame(0, [record(0), record(1)])
    follow(log, old)
    log.fates.observe(Offset(1), TimestampUs(NOW))
    take_in(log, FollowerAppend(log, frame(2, [record(99)]), NOW))
    assert b'"held":1' in file_content(disk, f"{DIRECTORY}/{NOTE_FILE}"), "before the young one is stored"
    assert log.history.dedupe.lookup(b"id1") == 1, "its fate is unknown"
    disk = disk.power_loss(nothing_survives)
    again = opened(disk)
    assert again.history.dedupe.lookup(b"id1") == 1
    last = again.history.last_timestamp
    again.history.lead_from(Offset(3), last)
    again.history.expire(TimestampUs(last + WINDOW_US - 1))
    assert again.history.dedupe.lookup(b"id1") == 1, "nobody could be told before"
    again.history.expire(TimestampUs(last + WINDOW_US))
    assert again.history.dedupe.lookup(b"id1") is None
    assert noted(again, 3)
    assert b"held" not in file_content(disk, f"{DIRECTORY}/{NOTE_FILE}")


def test_a_follower_that_catches_up_notes_what_is_not_committed_before_it_stores_it() -> None:
    disk = MemoryDisk()
    data = frame(0, [record(0)]) + frame(1, [record(1)]) + frame(2, [record(90)])
    FollowerAppend(opened(disk), data, NOW, committed=Offset(1)).write()
    again = opened(disk.power_loss(everything_survives))
    assert again.history.dedupe.lookup(b"id1") == 1, "its fate is unknown, and nothing was learnt of it"
    assert again.history.dedupe.lookup(b"id0") is None, "committed when it came, it is as old as it says"


def test_a_start_knows_what_is_not_committed_behind_a_cut_of_what_was() -> None:
    """An unclean election takes back more than the note holds."""
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, frame(0, [record(0), record(1)]), frame(2, [record(2), record(3)]))
    log.fates.observe(Offset(3), TimestampUs(NOW))
    take_in(log, FollowerAppend(log, frame(4, [record(99)]), NOW))
    assert b'"held":3' in file_content(disk, f"{DIRECTORY}/{NOTE_FILE}")
    log.log.truncate_to(Offset(2))
    log.settle()
    take_in(log, FollowerAppend(log, frame(2, [record(4)], 2), NOW))
    take_in(log, FollowerAppend(log, frame(3, [record(90)], 2), NOW))
    again = opened(disk.power_loss(nothing_survives))
    assert again.history.dedupe.lookup(b"id4") == 2


def test_what_a_follower_hears_of_a_late_commit_without_records_is_noted_until_the_window_is_over() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    take_in(log, FollowerAppend(log, frame(0, [record(0)]), NOW))
    take_in(log, FollowerAppend(log, frame(1, [record(15)]), NOW))
    heard = log.history.last_timestamp
    log.fates.observe(Offset(2), heard)
    assert not noted(log, 2)
    again = opened(disk.power_loss(nothing_survives))
    again.history.expire(TimestampUs(heard + WINDOW_US - 1))
    assert again.history.dedupe.lookup(b"id0") == 0


def test_a_log_fails_whose_note_may_be_lost() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    disk.faults = {disk.calls + number: Fault(FaultKind.IO_ERROR) for number in range(1, 20)}
    with pytest.raises(StorageError):
        FollowerAppend(log, frame(0, [record(0)]) + frame(1, [record(90)]), NOW).write()
    assert log.log.failed is not None


def test_a_follower_counts_the_window_from_when_it_hears_of_a_late_commit() -> None:
    log = opened(MemoryDisk())
    stale, fresh = frame(0, [record(0)]), frame(1, [record(50)])
    now = TimestampUs(NOW + 5_000)
    take_in(log, FollowerAppend(log, stale, now))
    take_in(log, FollowerAppend(log, fresh, now, high_watermark=Offset(1), committed=Offset(2)))
    log.history.expire(TimestampUs(now + WINDOW_US - 1))
    assert log.history.dedupe.lookup(b"id0") == 0, "it was committed after it came"
    log.history.expire(TimestampUs(now + WINDOW_US))
    assert log.history.dedupe.lookup(b"id0") is None
    assert log.history.dedupe.lookup(b"id50") is None, "committed when it came, it is as old as it says"


@pytest.mark.parametrize(("end", "txid"), [(4, 7), (2, 5)])
@pytest.mark.parametrize("killed", [False, True])
def test_a_note_of_records_that_were_cut_does_not_count(end: int, txid: int, killed: bool) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES, frame(20, [record(20, 90)]))
    note_due(log)
    assert noted(log, 21)
    log.log.truncate_to(Offset(end))
    if killed:
        disk = disk.power_loss(nothing_survives)
        log = opened(disk)
    else:
        log.settle()
    last = log.note.latest.txid
    assert last is not None
    assert (log.note.latest.end, last.txid) == (end, txid)
    assert b'"end":%d,"sessions":[],"txid":%d,' % (end, txid) in file_content(
        disk, f"{DIRECTORY}/{NOTE_FILE}"
    )
    follow(log, *(frame(number, [record(number)]) for number in range(end, 30)))
    again = opened(disk.power_loss(nothing_survives))
    assert again.history.last_txid == txid, "the old note is not believed once the log has grown over it"


def test_a_note_of_records_that_were_cut_counts_if_it_is_all_that_is_known() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, frame(0, [record(0, 5)]), frame(1, [record(1)]), frame(2, [record(2)]))
    note_due(log)
    assert noted(log, 3)
    log.log.truncate_before(Offset(1), Offset(2))
    log.log.truncate_to(Offset(2))
    log.settle()
    assert log.note.latest == LastTxid(Offset(2), TxidMark(LeaderEpoch(1), Offset(0), 5))


def test_a_full_disk_leaves_the_note_of_a_cut_log_due() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES)
    note_due(log)
    assert noted(log, 20)
    log.log.truncate_to(Offset(2))
    disk.faults = {disk.calls + number: Fault(FaultKind.DISK_FULL) for number in range(1, 40)}
    log.settle()
    disk.faults = {}
    assert noted(log, 2)
    assert b'"end":2,"sessions":[],"txid":5' in file_content(disk, f"{DIRECTORY}/{NOTE_FILE}")


def test_what_could_not_be_read_back_is_before_anything_is_stored() -> None:
    """Else an id that was cut off would be known, and its message, sent again, stored nowhere."""
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES)
    disk.faults = dict.fromkeys(range(disk.calls, disk.calls + 100), Fault(FaultKind.EXHAUSTED))
    with pytest.raises(OutOfResources):
        log.rebuild()
    append = FollowerAppend(log, frame(log.log.log_end_offset, [record(60)], 9), NOW)
    assert not append.only_writes()
    with pytest.raises(OutOfResources):
        append.write()
    disk.faults = {}
    append.write()
    assert append.records == 1
    assert not log.is_stale


# --- what the leader knows ---------------------------------------------------------------------------------

KNOWN_SESSION = PublisherSession(9, Offset(150), TimestampUs(NOW), is_gapless=True)
NOTED = PublisherState(
    LastTxid(Offset(200), TxidMark(LeaderEpoch(1), Offset(199), 70)), ((b"p", KNOWN_SESSION),)
)


def test_what_the_leader_knows_is_taken_in_durably_before_more_is_stored() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES[:3])
    FollowerAppend(log, FRAMES[3], NOW, note=encode_note(NOTED)).write()
    for known_here in (log, opened(disk.power_loss(nothing_survives))):
        assert known_here.history.sessions.find(b"p") == KNOWN_SESSION
        assert known_here.history.last_txid == 70


def test_what_the_leader_knows_no_better_is_not_noted_again() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.take_note(NOTED)
    calls = disk.calls
    log.take_note(NOTED)
    log.take_note(NOTED._replace(sessions=((b"p", KNOWN_SESSION._replace(sequence=8)),)))
    assert disk.calls == calls
    assert log.history.sessions.find(b"p") == KNOWN_SESSION


def begun_anew(faults: dict[int, Fault]) -> MemoryDisk:
    """Begin a log anew with the leader's note; ``faults`` by the number of the call since then."""
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *FRAMES)
    disk.faults = {disk.calls + number: fault for number, fault in faults.items()}
    with suppress(PowerLostError, JetstreamError):
        log.begin_anew(Offset(200), NOTED, lambda: log.log.reset_to(Offset(200)))
    return disk


@pytest.mark.parametrize(
    "kind",
    [
        FaultKind.POWER_LOSS,
        FaultKind.IO_ERROR,
        FaultKind.DISK_FULL,
        FaultKind.EXHAUSTED,
        FaultKind.SYNC_ERROR,
    ],
)
def test_a_log_that_begins_anew_knows_what_its_leader_knows_whatever_fails(kind: FaultKind) -> None:
    before = MemoryDisk()
    follow(opened(before), *FRAMES)
    calls = begun_anew({}).calls - before.calls
    assert calls > 10
    starts = set()
    for number in range(1, calls + 2):
        again = opened(begun_anew({number: Fault(kind)}).power_loss(random_survival(number)))
        starts.add(again.log.log_start_offset)
        if again.log.log_start_offset == 200:
            assert again.history.sessions.find(b"p") == KNOWN_SESSION, number
            assert again.history.last_txid == 70
    assert starts == {0, 200}


def test_nothing_is_noted_of_a_log_that_is_closed_another_may_be_in_its_place() -> None:
    disk = MemoryDisk()
    old = opened(disk)
    follow(old, *FRAMES)
    note_due(old)
    upkeep = Upkeep(old.log, SystemClock(), lambda: Offset(20), lambda: old.note)
    assert upkeep.note_due()
    old.log.close(clean=False)
    old.log.delete(disk, DIRECTORY)
    again = opened(disk)
    with pytest.raises(StreamOffline):
        old.note.write_before_removal(old.log)
    with pytest.raises(StreamOffline):
        upkeep.write_note()
    assert not disk.exists(f"{DIRECTORY}/{NOTE_FILE}")
    again.rebuild()
    assert again.history.last_txid is None


def test_who_leads_uncleanly_forgets_sessions_whose_records_it_never_got() -> None:
    log = opened(MemoryDisk())
    log.take_note(NOTED)
    begin_reign(log, LeaderEpoch(9), NOW)
    assert log.history.sessions.find(b"p") is None


def test_a_note_fits_an_answer_however_many_sessions_a_group_begins() -> None:
    sessions = PublisherSessions()
    last = PublisherSession(1 << 62, Offset(1 << 62), TimestampUs(1 << 62), is_gapless=True)
    for number in range(SESSIONS_MAX * 5 // 2):
        sessions.put(number.to_bytes(3).rjust(SESSION_ID_BYTES_MAX, b"\xff"), last)
    noted = PublisherState(
        LastTxid(Offset(1 << 62), TxidMark(LeaderEpoch(1), Offset(1 << 61), 1 << 62)), sessions_of(sessions)
    )
    newest = [session for session, _ in sessions.items()][-SESSIONS_MAX:]
    assert [session for session, _ in noted.sessions] == newest
    note = encode_note(noted)
    sent = StartOverMessage(LeaderEpoch(1), LeaderEpoch(0), Offset(0), Offset(0), note)
    ((_, read),) = fed(WireReader(), encode_message(sent, 0))
    assert isinstance(read, StartOverMessage)
    assert decode_note(read.note) == noted


# --- reigns -----------------------------------------------------------------------------------------------


def test_no_reign_begins_in_a_log_that_failed() -> None:
    log = opened(MemoryDisk())
    follow(log, FRAMES[0])
    log.log.writer.fail(CorruptDataError("damaged"))
    with pytest.raises(StreamOffline):
        begin_reign(log, LeaderEpoch(9), NOW)


def test_a_batch_that_is_intact_but_no_arrow_of_ours_fails_the_log() -> None:
    log = opened(MemoryDisk())
    batch = encode(records_batch([record(0)]), Offset(0), LeaderEpoch(1))
    message = batch.seal(BatchFlags.ROLL)
    rows = record_batch_fields(bytes(message)).row_count
    message[rows : rows + 8] = (1 << 40).to_bytes(8, "little")
    follow(log, bytes(batch.seal(BatchFlags.ROLL)))
    assert isinstance(log.log.failed, CorruptDataError)
