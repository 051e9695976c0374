"""A stream's last txid and its publishers' sessions, also of records that are gone.

A txid below the stream's last one is refused, and a repeated message of a session is not stored again. So a
node that starts must know the last one of each for certain, however long ago it was, and also if its record
has been removed since. They are looked for in the records from some offset on; what is known of those below
it is noted now and then in the ``txid`` state file of the log's directory:

    {"end": 4711, "txid": 42, "txid_at": [3, 4698],
     "sessions": [["importer-3", 9, 4700, 1764000000000000, true]]}

The last txid of the records below offset ``end``, all of them durable, is 42; null if none has one. Its
record is at offset 4698, or behind it in the same batch, of leader epoch 3: an operator may have set the
txid at a later place, and then it does not count. A note without that place is of before any was set. Of
each session there are the id (its bytes as Latin-1), and its last record's sequence, offset and timestamp,
and whether all numbers up to that one are stored. The note saves time, and remembers what retention,
truncation and compaction remove; without it, all that is stored is searched.

A follower's log may be cut back behind the note's end. Then the txid may be that of a record that is gone,
and counts only if no kept record has one: too large a last txid refuses what could be stored, definitely;
too small a one stores a repeat. A session whose last record was cut is what the kept records say, and is
forgotten if none is its: too large a sequence would answer for what was never stored.

While old records are not committed, or have just been, ``"held": 4000`` says that the names of all from there
on must be known: one window of records does not reach back so far (`RecordFates.overdue`). Records behind
which that is so are stored only once it is noted.

A follower that begins anew where its leader's log begins gets that leader's note first, instead of its own,
which may speak of what was never committed; and every other one before it joins those in sync: a read replica
may have copied a log of which compaction had taken records. The note speaks of nothing that is not committed,
so that whoever has it has the records as well before it leads.
"""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError, DiskFull, StreamOffline
from envelope.limits import MIB, SESSION_ID_BYTES_MAX, SESSIONS_MAX
from envelope.types import NO_OFFSET, LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.publishers.history import TxidMark
from jetstream.ingest.publishers.record_fates import RecordFates
from jetstream.ingest.publishers.sessions import PublisherSession, PublisherSessions, StoredPlace
from jetstream.log.disk.port import Disk
from jetstream.log.disk.state_file import Json, decode_state, encode_state, natural, read_whole, write_state
from jetstream.log.log import Log
from jetstream.log.state.epochs import NO_EPOCH
from jetstream.replica.wire import HEADER_BYTES_MAX

NOTE_FILE: Final = "txid"

_log = logging.getLogger(__name__)

SEARCHED_BYTES: Final = 64 * MIB
SEARCHED_BATCHES: Final = 2048
"""A note is due when so much would be searched without it: a few tenths of a second."""


_SESSION_BYTES_MAX: Final = 6 * SESSION_ID_BYTES_MAX + 3 * 20 + 16
"""Of one session in the file: six characters for a byte that is no ASCII, three numbers, what is around."""

assert SESSIONS_MAX * _SESSION_BYTES_MAX < HEADER_BYTES_MAX, "a note of sessions fits an answer's header"


class LastTxid(NamedTuple):
    """The last txid of all records below ``end`` that were ever stored; None if none had one."""

    end: Offset
    txid: TxidMark | None


class PublisherState(NamedTuple):
    """The content of a note."""

    last: LastTxid
    sessions: tuple[tuple[bytes, PublisherSession], ...]
    held: Offset | None = None

    def encode(self) -> dict[str, Json]:
        """Return the content of the state file."""
        sessions: list[Json] = [[session.decode("latin-1"), *last] for session, last in self.sessions]
        txid = self.last.txid
        content: dict[str, Json] = {"end": self.last.end, "txid": None, "sessions": sessions}
        if txid is not None:
            content |= {"txid": txid.txid, "txid_at": [txid.leader_epoch, txid.offset]}
        return content if self.held is None else content | {"held": self.held}


NOTHING_NOTED: Final = PublisherState(LastTxid(Offset(0), None), ())
"""Of a log without txids and sessions."""


def later(*txids: TxidMark | None) -> TxidMark | None:
    """Return the last one of these; None is before all."""
    return max((txid for txid in txids if txid is not None), default=None)


class PublisherStateFile:
    """Knows one stream's last txid and its sessions while records are stored, and keeps the note of them.

    All but `is_due` and `latest` is for the disk thread.

    Invariant:
        T1: a note of the last txid and the sessions is written only when all records below its end are
            durable.
            Held by test_nothing_is_noted_before_it_is_durable.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        noted: PublisherState,
        latest: LastTxid,
        sessions: PublisherSessions,
        fates: RecordFates,
    ) -> None:
        """Go on from the note that is on the disk, and what has been found in the records since."""
        self._disk = disk
        self._path = f"{directory}/{NOTE_FILE}"
        self._noted = noted
        self._end, self._txid = latest
        self._sessions = sessions
        self._fates = fates
        self._waiting: PublisherState | None = None
        # How many batches with sessions had come: until now, until what waits, until what is noted.
        self._changes = int(sessions_of(sessions) != noted.sessions)
        self._changes_waiting = self._changes_noted = 0
        self._batches = 0
        self._size = 0

    @property
    def latest(self) -> LastTxid:
        """The last txid of all records stored so far."""
        return LastTxid(self._end, self._txid)

    def appended(
        self,
        end: Offset,
        txid: TxidMark | None,
        size: int,
        places: Sequence[StoredPlace] = (),
        batches: int = 1,
    ) -> None:
        """Record stored batches, with their last txid, their bytes, and their records of sessions.

        Let what is known now become the next note, if the search would be long without it.
        """
        self._end = end
        if txid is not None:
            self._txid = later(self._txid, txid)
        for place in places:
            self._sessions.store(place)
        if places:
            self._sessions.expire(places[-1].timestamp)
            self._changes += 1
        self._batches += batches
        self._size += size
        is_long = self._batches >= SEARCHED_BATCHES or self._size >= SEARCHED_BYTES
        if is_long and self._waiting is None:
            self._let_wait()
            self._batches = self._size = 0

    def resize(self, session_window_us: int) -> None:
        """Keep sessions for so long from now on, microseconds."""
        self._sessions.resize(session_window_us)

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to `write` once it is durable."""
        return self._waiting is not None

    def is_due(self, durable_end: Offset) -> bool:
        """Return whether `write` should be called."""
        waiting = self._waiting
        return waiting is not None and waiting.last.end <= durable_end

    def write(self) -> None:
        """Write what is due.

        Raises:
            DiskFull, StorageError, FsyncFailed: the older note, or either, is in place.
        """
        waiting = self._waiting
        if waiting is not None:
            self._write(waiting, self._noted.held)
            self._changes_noted = self._changes_waiting
            self._waiting = None

    def is_held_due(self, last_timestamp: TimestampUs) -> bool:
        """Return whether `write_held` should be called; the log ends with a record of that time."""
        # An offset that is too low does no harm.
        return (self._fates.overdue(last_timestamp) is None) != (self._noted.held is None)

    def write_held(self, last_timestamp: TimestampUs) -> None:
        """Write from where on names must be known, beside what is on record, if that has changed.

        Raises:
            As `write`.
        """
        self._fates.apply_observed(self._end)
        if self.is_held_due(last_timestamp):
            self._write(self._noted, self._fates.overdue(last_timestamp))

    def must_hold(
        self, last_timestamp: TimestampUs, unreplayed: tuple[Offset, TimestampUs] | None = None
    ) -> Offset | None:
        """Return what to `hold` before records are stored, the last of that time; None: nothing.

        ``unreplayed`` are the first offset whose name may not be known here yet, and its time.
        """
        noted, fates, held = self._noted.held, self._fates, None
        if fates.held <= fates.newest:  # otherwise no name is held
            held = fates.overdue(last_timestamp)
        if held is None and unreplayed is not None and unreplayed[1] < last_timestamp:
            held = unreplayed[0] if fates.is_old(unreplayed[1], last_timestamp) else None
        # An unclean election may take back more than the note holds.
        return held if held is not None and (noted is None or held < noted) else None

    def hold(self, held: Offset) -> None:
        """Write that the names from there on must be known; raises as `write`."""
        self._write(self._noted, held)

    def _write(self, noted: PublisherState, held: Offset | None) -> None:
        noted = noted._replace(held=held)
        write_state(self._disk, self._path, noted.encode())
        self._noted = noted

    def write_before_removal(self, log: Log) -> None:
        """Write the publisher state if it is newer than the one on record, as records will go.

        After a failure the write stays due.

        Raises:
            As `write`, and as `Log.sync`.
            StreamOffline: the log has failed or is closed; another one may be in its place already.
        """
        if log.failed is not None:
            raise StreamOffline(f"nothing is noted of {log.directory}: {log.failed}") from log.failed
        if self._changes != self._changes_noted or self._txid != self._noted.last.txid:
            self._let_wait()
            log.writer.sync()
            self.write()

    def apply(
        self, sessions: Sequence[tuple[bytes, PublisherSession]], txid: TxidMark | None, log: Log
    ) -> None:
        """Apply the leader's newer state, and write it if it changes anything.

        Raises:
            As `write_before_removal`.
        """
        for session, last in sessions:
            if self._sessions.find(session) != last:
                self._sessions.put(session, last)
                self._changes += 1
        self._txid = later(self._txid, txid)
        self.write_before_removal(log)

    def cut_back(self, latest: LastTxid, sessions: PublisherSessions) -> None:
        """Go on from what is known of a log that was cut."""
        self._end, self._txid = latest
        self._sessions = sessions
        self._changes += 1
        if self._noted.last.end > latest.end:
            self.replace()
        elif self._waiting is not None:
            self._let_wait()

    def replace(self) -> None:
        """Put on record what is known instead of what was cut; on a full disk that stays due."""
        self._let_wait()
        with suppress(DiskFull):
            self.write()

    def _let_wait(self) -> None:
        self._waiting = PublisherState(self.latest, sessions_of(self._sessions))
        self._changes_waiting = self._changes


def sessions_of(
    sessions: PublisherSessions, below: Offset | None = None
) -> tuple[tuple[bytes, PublisherSession], ...]:
    """Return what is known of each session whose last record is ``below`` an offset.

    Only of those used last, `SESSIONS_MAX`: until the next one expires there may be more by a group's.
    """
    known = [(session, last) for session, last in sessions.items() if below is None or last.offset < below]
    return tuple(known[-SESSIONS_MAX:])


# --- the file -----------------------------------------------------------------------------------------


def read_note(disk: Disk, directory: str) -> PublisherState:
    """Return the note in ``directory``; an empty one if there is none to be used."""
    path = f"{directory}/{NOTE_FILE}"
    if not disk.exists(path):
        return NOTHING_NOTED
    try:
        return decode_note(read_whole(disk, path))
    except CorruptDataError as error:
        _log.warning("txid file unusable path=%s error=%s", path, error)
        return NOTHING_NOTED


def encode_note(noted: PublisherState) -> bytes:
    """Return a note as its file has it."""
    return encode_state(noted.encode())


def decode_note(content: bytes) -> PublisherState:
    """Return the note in the content of a file.

    Raises:
        CorruptDataError: it is damaged, or is none.
    """
    state = decode_state(content)
    match state:
        case {"txid": None}:
            txid = None
        case {"txid": int(number), "txid_at": [int(epoch), int(offset)]} if not isinstance(number, bool):
            txid = TxidMark(LeaderEpoch(epoch), Offset(offset), number)
        case {"txid": int(number)} if not isinstance(number, bool) and "txid_at" not in state:
            txid = TxidMark(NO_EPOCH, NO_OFFSET, number)
        case _:
            raise CorruptDataError(f"a txid file says {str(state)[:200]}")
    entries = state.get("sessions", [])
    if not isinstance(entries, list):
        raise CorruptDataError("the sessions of a txid file are no list")
    last = LastTxid(Offset(natural(state, "end")), txid)
    held = Offset(natural(state, "held")) if "held" in state else None
    return PublisherState(last, tuple(_decode_sessions(entries)), held)


def _decode_sessions(entries: list[Json]) -> Iterable[tuple[bytes, PublisherSession]]:
    for entry in entries:
        match entry:
            case [str(session), int(sequence), int(offset), int(timestamp), bool(is_gapless)] if (
                session.isascii() or max(session) <= "\xff"
            ):
                last = PublisherSession(sequence, Offset(offset), TimestampUs(timestamp), is_gapless)
                yield session.encode("latin-1"), last
            case _:
                raise CorruptDataError(f"a session in a txid file is {str(entry)[:200]}")


def put_note(disk: Disk, directory: str, noted: PublisherState) -> None:
    """Replace the note, whatever is in it; durable on return.

    Raises:
        DiskFull, StorageError, FsyncFailed: the older note, or either, is in place.
    """
    write_state(disk, f"{directory}/{NOTE_FILE}", noted.encode())
