"""After whatever end: the last txid of a stream is known, and the last message of every session."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count

import pytest

from envelope.errors import DiskFull, JetstreamError
from envelope.headers import SEQUENCE, SEQUENCE_AFTER, SESSION, SessionPlace
from envelope.limits import MIB
from envelope.types import LeaderEpoch, Offset, SyncMode, TimestampUs
from jetstream.ingest.publishers.history import TxidMark, last_txid_of
from jetstream.ingest.publishers.sessions import StoredPlace
from jetstream.log.disk.state_file import Json, write_state
from jetstream.log.format.batch import encode
from jetstream.node.disk.history_file import NOTE_FILE, SEARCHED_BATCHES
from jetstream.node.disk.log_upkeep import Upkeep
from jetstream.node.runtime.clock import SystemClock
from metadata.stream_config import Retention, StreamConfig
from tests.support.logs import DIRECTORY, NOW, Record, file_content, flipped, overwrite, records_batch
from tests.support.lone_streams import open_led
from tests.support.memory_disk import (
    Fault,
    FaultKind,
    MemoryDisk,
    PowerLostError,
    everything_survives,
    nothing_survives,
    random_survival,
)

PATH = f"{DIRECTORY}/{NOTE_FILE}"
SMALL_SEGMENTS = 64 * 1024
EPOCHS = count(1)
HIGHEST = (1 << 63) - 1


def config(sync: SyncMode = SyncMode.ALWAYS, segment_bytes: int = 1 << 30) -> StreamConfig:
    """Without message ids, so that nothing but the search for txids looks at old records."""
    return StreamConfig(
        name="orders",
        subject="orders",
        sync=sync,
        segment_bytes=segment_bytes,
        retention=Retention(bytes=SMALL_SEGMENTS),
        dedupe_window=timedelta(0),
    )


class Life:
    """One stream from a start of its node on, with its upkeep."""

    def __init__(self, disk: MemoryDisk, settings: StreamConfig | None = None) -> None:
        epoch = LeaderEpoch(next(EPOCHS))
        opened = open_led(disk, DIRECTORY, settings or config(), epoch, NOW)
        self.disk = disk
        self.log = opened.log
        self.opened = opened
        self.last_txid = opened.history.last_txid
        self.note = opened.note
        self.upkeep = Upkeep(self.log, SystemClock(), lambda: self.log.writer.synced_end, lambda: opened.note)

    def append(self, *txids: int | None, size: int = 1) -> None:
        """Append one batch of records with these txids, and have it synced if the mode says so."""
        base = self.log.log_end_offset
        now = TimestampUs(NOW + base)
        rows = [Record(value=b"v" * size, txid=txid, timestamp=now) for txid in txids]
        batch = encode(records_batch(rows, base), base, self.log.reader.last_epoch)
        self.log.writer.append_group((batch,), now)
        if self.log.writer.config.sync is SyncMode.ALWAYS:
            self.log.writer.sync()
        mark = TxidMark(batch.leader_epoch, base, batch.last_txid) if batch.last_txid is not None else None
        self.note.appended(batch.next, mark, batch.size)
        self.upkeep.appended()

    def append_session(self, sequence: int, size: int = 1) -> None:
        """Append one record of a session without gaps, and have it synced if the mode says so."""
        base = self.log.log_end_offset
        now = TimestampUs(NOW + base)
        headers = [(SESSION, b"p"), (SEQUENCE, b"%d" % sequence), (SEQUENCE_AFTER, b"%d" % (sequence - 1))]
        rows = [Record(value=b"v" * size, headers=headers, timestamp=now)]
        batch = encode(records_batch(rows, base), base, self.log.reader.last_epoch)
        self.log.writer.append_group((batch,), now)
        if self.log.writer.config.sync is SyncMode.ALWAYS:
            self.log.writer.sync()
        place = StoredPlace(SessionPlace(b"p", sequence, sequence - 1), base, now)
        self.note.appended(batch.next, None, batch.size, [place])
        self.upkeep.appended()

    @property
    def session(self) -> tuple[int, int, bool] | None:
        """Sequence, offset and gaplessness of the session's last record."""
        found = self.opened.history.sessions.find(b"p")
        return None if found is None else (found.sequence, found.offset, found.is_gapless)

    def append_much(self) -> None:
        """Append so many batches without a txid that nobody should have to look at all of them."""
        for _ in range(SEARCHED_BATCHES + 1):
            self.append(None)

    def next(self) -> "Life":
        """End as a killed process does, and start again."""
        return Life(self.disk.power_loss(everything_survives), config(self.log.writer.config.sync))


def damage(life: Life, offset: int) -> None:
    """End the life cleanly, and damage the batch with this offset."""
    place = life.log.reader.locate(Offset(offset))
    life.log.close()
    content = bytearray(file_content(life.disk, place.segment.path))
    content[place.entry.position + 200 : place.entry.position + 300] = bytes(100)
    overwrite(life.disk, place.segment.path, bytes(content))


# --- found ---------------------------------------------------------------------------------------------


def test_the_last_txid_is_found_however_much_was_stored_since() -> None:
    life = Life(MemoryDisk(), config(SyncMode.OS))
    life.append(5)
    life.append(7, None)
    for _ in range(9):
        life.append(None, size=8 * MIB)
    assert life.next().last_txid == 7


@pytest.mark.parametrize("txids", [(), (None,), (None, None)])
def test_a_stream_without_txids_has_no_last_one(txids: Sequence[int | None]) -> None:
    life = Life(MemoryDisk())
    for txid in txids:
        life.append(txid)
    assert life.next().last_txid is None


def test_a_txid_may_be_below_zero() -> None:
    life = Life(MemoryDisk())
    life.append(-9, -3)
    life.append(None)
    assert life.next().last_txid == -3


def test_the_last_txid_is_found_behind_damage() -> None:
    life = Life(MemoryDisk())
    for txid in (5, 7, 9, None):
        life.append(txid)
    damage(life, 2)
    assert life.next().last_txid == 7


def test_damage_in_the_middle_of_what_is_read_back_is_passed_over() -> None:
    settings = config().model_copy(update={"dedupe_window": timedelta(minutes=1)})
    life = Life(MemoryDisk(), settings)
    for txid in (5, 7, 9, None):
        life.append(txid)
    damage(life, 1)
    assert Life(life.disk, settings).last_txid == 9


# --- noted ---------------------------------------------------------------------------------------------


def test_the_search_ends_where_a_note_was_made() -> None:
    life = Life(MemoryDisk())
    life.append(7)
    life.append_much()
    assert life.upkeep.note_due()
    life.upkeep.write_note()
    assert not life.upkeep.note_due()
    life.append(None)
    again = life.next()
    assert again.last_txid == 7
    assert not again.upkeep.note_due()
    again.disk.unlink(PATH)
    again = again.next()
    assert again.last_txid == 7
    assert again.upkeep.note_due(), "all was searched"


def test_a_long_search_is_noted_so_that_the_next_one_is_short() -> None:
    life = Life(MemoryDisk())
    life.append_much()
    again = life.next()
    assert again.upkeep.note_due()
    again.upkeep.write_note()
    again = again.next()
    assert not again.upkeep.note_due()


def test_nothing_is_noted_before_it_is_durable() -> None:
    life = Life(MemoryDisk(), config(SyncMode.OS))
    life.append(7)
    life.append_much()
    assert not life.upkeep.note_due()
    life.log.writer.sync()
    life.append(9)
    assert life.upkeep.note_due()
    life.upkeep.write_note()
    assert Life(life.disk.power_loss(nothing_survives)).last_txid == 7


def test_an_unusable_note_is_done_without() -> None:
    life = Life(MemoryDisk())
    life.append(7)
    life.upkeep.truncate_before(Offset(1))
    content = file_content(life.disk, PATH)
    assert content.startswith(b'{"end":1,"sessions":[],"txid":7,"txid_at":[')
    life.append(8)
    life.append(None)
    for position in range(len(content)):
        overwrite(life.disk, PATH, flipped(content, position, position % 8))
        life = life.next()
        assert life.last_txid == 8
    life.disk.unlink(PATH)
    assert life.next().last_txid == 8


@pytest.mark.parametrize("removed", [False, True])
def test_a_note_of_before_a_txid_was_set_does_not_count_and_one_of_after_it_does(*, removed: bool) -> None:
    """The note says which record's it is; who was not told of the other place still notes the right one."""
    life = Life(MemoryDisk())
    life.append(1, HIGHEST)
    life.append(None)
    life.upkeep.truncate_before(Offset(2))
    assert b"%d" % HIGHEST in file_content(life.disk, PATH)
    place = TxidMark(life.log.reader.last_epoch, Offset(3), 5)
    assert last_txid_of(life.next().opened.history.txid, place) == 5
    for txid in (6, 7):
        life = life.next()
        life.append(txid)
        if removed:
            life.upkeep.truncate_before(life.log.log_end_offset)
        assert last_txid_of(life.next().opened.history.txid, place) == txid


def test_a_note_without_a_place_is_of_before_a_txid_was_set() -> None:
    life = Life(MemoryDisk())
    life.append(HIGHEST)
    life.upkeep.truncate_before(Offset(1))
    write_state(life.disk, PATH, {"end": 1, "sessions": [], "txid": HIGHEST})
    after = life.next()
    assert after.last_txid == HIGHEST
    assert last_txid_of(after.opened.history.txid, TxidMark(LeaderEpoch(1), Offset(1), 5)) == 5


@pytest.mark.parametrize(
    "state", [{"end": 1}, {"end": 1, "txid": "7"}, {"end": 1, "txid": True}, {"txid": 7}]
)
def test_a_note_that_makes_no_sense_is_done_without(state: dict[str, Json]) -> None:
    life = Life(MemoryDisk())
    life.append(5)
    life.append(None)
    write_state(life.disk, PATH, state)
    assert life.next().last_txid == 5


# --- removed -------------------------------------------------------------------------------------------


def test_the_last_txid_is_known_after_its_record_was_truncated() -> None:
    life = Life(MemoryDisk())
    life.append(7)
    life.append(None)
    life.upkeep.truncate_before(Offset(1))
    assert life.next().last_txid == 7


def rolled(disk: MemoryDisk, sync: SyncMode = SyncMode.ALWAYS) -> Life:
    """Return a stream whose only txid is in the first segment, which its retention does not keep."""
    life = Life(disk, config(sync, SMALL_SEGMENTS))
    life.append(7)
    for _ in range(4):
        life.append(None, size=SMALL_SEGMENTS)
    return life


def note_writes(disk: MemoryDisk, since: int) -> list[int]:
    """Return the numbers of the calls after ``since`` that write a note."""
    calls = enumerate(disk.trace[since:], since + 1)
    return [number for number, call in calls if call.startswith(f"write {PATH}")]


def test_the_last_txid_is_known_after_its_record_has_expired() -> None:
    life = rolled(MemoryDisk())
    life.upkeep.apply_retention()
    assert life.log.log_start_offset > 0
    assert life.next().last_txid == 7


def test_a_note_that_finds_no_space_does_not_keep_retention_from_making_some() -> None:
    rehearsal = rolled(MemoryDisk())
    calls = rehearsal.disk.calls
    rehearsal.upkeep.apply_retention()
    write = note_writes(rehearsal.disk, calls)[0]
    life = rolled(MemoryDisk({write: Fault(FaultKind.SHORT_WRITE)}))
    life.upkeep.apply_retention()
    assert life.log.log_start_offset > 0
    assert life.next().last_txid == 7, "noted when there was space"


def test_a_note_that_finds_no_space_after_the_removal_either_stays_due() -> None:
    writes: set[int] = set()
    for _ in range(2):
        life = rolled(MemoryDisk({call: Fault(FaultKind.SHORT_WRITE) for call in writes}))
        calls = life.disk.calls
        life.upkeep.apply_retention()
        writes.update(note_writes(life.disk, calls))
    life = rolled(MemoryDisk({call: Fault(FaultKind.SHORT_WRITE) for call in writes}))
    with pytest.raises(DiskFull):
        life.upkeep.apply_retention()
    assert life.log.log_start_offset > 0
    assert life.upkeep.note_due()
    life.upkeep.write_note()
    assert not life.upkeep.note_due()
    assert life.next().last_txid == 7


def test_what_is_noted_before_a_removal_is_durable_too() -> None:
    life = rolled(MemoryDisk(), SyncMode.OS)
    life.append(9)
    life.upkeep.apply_retention()
    assert life.log.log_start_offset > 0
    after = Life(life.disk.power_loss(nothing_survives))
    assert (after.last_txid, after.log.log_end_offset) == (9, 6)


def test_nothing_is_noted_or_synced_while_nothing_is_removed() -> None:
    life = Life(MemoryDisk(), config(SyncMode.OS))
    life.append(7)
    life.append(9)
    calls = life.disk.calls
    life.upkeep.apply_retention()
    life.upkeep.truncate_before(Offset(0))
    assert life.disk.trace[calls:] == []
    assert life.log.writer.durable_end == 0


# --- sessions ------------------------------------------------------------------------------------------


def test_a_session_is_known_however_much_was_stored_since_and_although_its_records_are_gone() -> None:
    life = Life(MemoryDisk())
    life.append_session(1)
    life.append_session(2)
    life.append_much()
    life.upkeep.write_note()
    life.append(None)
    again = life.next()
    assert (again.session, again.upkeep.note_due()) == ((2, 1, True), False)
    again.upkeep.truncate_before(Offset(3))
    assert again.next().session == (2, 1, True)


def test_a_session_is_noted_before_its_records_are_removed_and_only_if_it_is_not_noted() -> None:
    life = Life(MemoryDisk(), config(SyncMode.OS))
    for sequence in range(1, 4):
        life.append_session(sequence)
    life.log.writer.sync()
    life.upkeep.truncate_before(Offset(1))
    calls = life.disk.calls
    life.upkeep.truncate_before(Offset(2))
    assert note_writes(life.disk, calls) == []
    assert Life(life.disk.power_loss(nothing_survives)).session == (3, 2, True)


def test_a_session_whose_last_record_was_cut_is_what_is_kept() -> None:
    life = Life(MemoryDisk())
    for sequence in range(1, 5):
        life.append_session(sequence)
    life.upkeep.truncate_before(Offset(1))
    life.log.truncate_to(Offset(3))
    life = life.next()
    assert life.session == (3, 2, False), "what came before is not there to be looked at"
    life.log.truncate_to(Offset(1))
    assert life.next().session is None, "rather unknown than too far"


def session_life(disk: MemoryDisk, told: list[int], sent: list[int]) -> None:
    """Two starts of a stream whose only session goes on, while retention removes its records."""
    for start in (1, 5):
        life = Life(disk, config(segment_bytes=SMALL_SEGMENTS))
        for sequence in range(start, start + 4):
            sent.append(sequence)
            life.append_session(sequence)
            told.append(sequence)
            life.append(None, size=SMALL_SEGMENTS)
            if sequence % 2:
                life.upkeep.apply_retention()
        life.log.close()


def after_each_failure(
    live: Callable[[MemoryDisk, list[int], list[int]], None],
) -> Iterator[tuple[Life, list[int], list[int]]]:
    """Fail each disk call of some starts, in each way; yield the next start, what was acked and what sent."""
    rehearsal = MemoryDisk()
    live(rehearsal, [], [])
    assert note_writes(rehearsal, 0)
    for number in range(1, rehearsal.calls + 1):
        for kind in (FaultKind.POWER_LOSS, FaultKind.IO_ERROR, FaultKind.SHORT_WRITE, FaultKind.EXHAUSTED):
            disk = MemoryDisk({number: Fault(kind, bytes_kept=100)})
            told: list[int] = []
            sent: list[int] = []
            with suppress(PowerLostError, JetstreamError):
                live(disk, told, sent)
            survival = random_survival(number) if number % 2 else nothing_survives
            yield Life(disk.power_loss(survival), config(segment_bytes=SMALL_SEGMENTS)), told, sent


@pytest.mark.slow(
    "tests/crash/test_log_note.py::test_the_search_ends_where_a_note_was_made",
    "tests/crash/test_every_call_fails.py",
)
def test_no_failure_at_any_call_makes_a_repeat_new_or_a_new_one_a_repeat() -> None:
    for after, told, sent in after_each_failure(session_life):
        sequence = 0 if after.session is None else after.session[0]
        assert sequence in (max(told, default=0), *sent[len(told) :])
        assert after.session is None or after.session[2]


@pytest.mark.parametrize(
    "sessions",
    [
        7,
        [["p"]],
        [["p", 1, 0, 0, 1]],
        [["p", "1", 0, 0, True]],
        [["\u1234", 1, 0, 0, True]],
        [[7, 1, 0, 0, True]],
    ],
)
def test_a_note_whose_sessions_make_no_sense_is_done_without(sessions: Json) -> None:
    life = Life(MemoryDisk())
    life.append_session(1)
    write_state(life.disk, PATH, {"end": 1, "txid": None, "sessions": sessions})
    assert life.next().session == (1, 0, True)


def test_a_note_without_sessions_is_that_of_an_earlier_version() -> None:
    life = Life(MemoryDisk())
    life.append(7)
    write_state(life.disk, PATH, {"end": 1, "txid": 7})
    assert (life.next().last_txid, life.session) == (7, None)


# --- at every call -------------------------------------------------------------------------------------


def whole_life(disk: MemoryDisk, told: list[int], sent: list[int]) -> None:
    """Two starts of a stream that gets txids, removes them and goes on; ``told`` were acked."""
    for start in (0, 10):
        life = Life(disk, config(segment_bytes=SMALL_SEGMENTS))
        for txid in range(start, start + 4):
            sent.append(txid)
            life.append(txid)
            told.append(txid)
            life.append(None, size=SMALL_SEGMENTS)
            if txid % 2:
                life.upkeep.apply_retention()
        life.log.close()


@pytest.mark.slow(
    "tests/crash/test_log_note.py::test_the_search_ends_where_a_note_was_made",
    "tests/crash/test_every_call_fails.py",
)
def test_no_failure_at_any_call_makes_a_lower_txid_good() -> None:
    for after, told, sent in after_each_failure(whole_life):
        assert after.last_txid in (max(told, default=None), *sent[len(told) :])
