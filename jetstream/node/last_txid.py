"""A stream's last transaction id, also across a restart.

A txid below the stream's last one is refused, so a node that starts must know the last one for certain,
however long ago it was, and also if its record has been removed since. It is looked for in the records,
backwards from the log's end. So that this comes to an end early in a stream that uses no txids, what is known
is noted now and then in the ``txid`` state file of the log's directory:

    {"end": 4711, "txid": 42}

The last txid of the records below offset ``end``, all of them durable, is 42; null if none has one. The note
saves time, and remembers what retention and truncation remove; without it, all that is stored is searched.

A follower's log may be cut back behind the note's end. Then the txid may be that of a record that is gone,
and counts only if no kept record has one: too large a last txid refuses what could be stored, definitely;
too small a one stores a repeat.
"""

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from envelope.errors import CorruptDataError, DiskFull
from envelope.limits import MIB
from envelope.types import Offset
from jetstream.log.batch import UnsealedBatch, decode, last_txid
from jetstream.log.disk import Disk
from jetstream.log.log import Log
from jetstream.log.state_file import Json, decode_state, natural, read_whole, write_state

TXID_FILE: Final = "txid"

_log = logging.getLogger(__name__)

SEARCHED_BYTES: Final = 64 * MIB
SEARCHED_BATCHES: Final = 2048
"""A note is due when so much would be searched without it: a few tenths of a second."""


class LastTxid(NamedTuple):
    """The largest txid of all records below ``end`` that were ever stored; None if none had one."""

    end: Offset
    txid: int | None


_UNKNOWN: Final = LastTxid(Offset(0), None)


def later(one: int | None, other: int | None) -> int | None:
    """Return the larger of two txids; None is below all."""
    return max((txid for txid in (one, other) if txid is not None), default=None)


class TxidNote:
    """Knows one stream's last txid while records are appended, and keeps the note of it.

    Invariant:
        T1: a note is written only when all records below its end are durable.
    """

    def __init__(self, disk: Disk, directory: str, noted: LastTxid) -> None:
        """Go on from the note that is on the disk."""
        self._disk = disk
        self._path = f"{directory}/{TXID_FILE}"
        self._noted = noted
        self._latest = noted
        self._waiting: LastTxid | None = None
        self._batches = 0
        self._size = 0

    @property
    def latest(self) -> LastTxid:
        """What is known now."""
        return self._latest

    def appended(self, batches: Sequence[UnsealedBatch]) -> None:
        """Take note of batches that the log has taken; on the event loop's thread."""
        for batch in batches:
            self.absorbed(batch.next, batch.last_txid, batch.size)

    def absorbed(self, end: Offset, txid: int | None, size: int) -> None:
        """Take note of one stored batch, with its last txid and its bytes; a follower: on the disk thread."""
        self._latest = LastTxid(end, later(self._latest.txid, txid))
        self._passed(size)
        self._wait_if_due()

    def is_due(self, durable_end: Offset) -> bool:
        """Tell whether `write` should be called."""
        return self._waiting is not None and self._waiting.end <= durable_end

    def write(self) -> None:
        """Write what is due; on the disk thread.

        Raises:
            DiskFull, StorageError, FsyncFailed: the older note, or either, is in place.
        """
        waiting = self._waiting
        if waiting is not None:
            self._write(waiting)
            self._waiting = None

    def write_before_removal(self, log: Log) -> None:
        """Write what is known if the txid on record is older, as records will go; on the disk thread.

        What could not be written stays due.

        Raises:
            As `write`, and as `Log.sync`.
        """
        latest = self._latest
        if latest.txid != self._noted.txid:
            self._waiting = latest
            log.sync()
            self.write()

    def _write(self, known: LastTxid) -> None:
        state: dict[str, Json] = {"end": known.end, "txid": known.txid}
        write_state(self._disk, self._path, state)
        self._noted = known

    # --- at the start ------------------------------------------------------------------------------

    @classmethod
    def recovered(
        cls, disk: Disk, directory: str, log: Log, searched: Offset, found: int | None
    ) -> "TxidNote":
        """Find the last txid of a log that has just been opened.

        Args:
            disk: where the note is.
            directory: of the log.
            log: itself.
            searched: from here on its records were looked at already,
            found: and this is the last txid among them.

        Raises:
            StorageError: the disk refused.
        """
        noted = _read(disk, f"{directory}/{TXID_FILE}")
        note = cls(disk, directory, noted)
        was_cut = noted.end > log.log_end_offset
        if found is None:
            found = note._search(log, searched, log.log_start_offset if was_cut else noted.end)
        txid = found if was_cut and found is not None else later(noted.txid, found)
        note._latest = LastTxid(log.log_end_offset, txid)
        if was_cut and log.failed is None:
            note._replace()
        note._wait_if_due()
        return note

    def _replace(self) -> None:
        """Put on record what is known instead of what was cut; on a full disk that stays due."""
        self._waiting = self._latest
        with suppress(DiskFull):
            self.write()

    def _search(self, log: Log, end: Offset, stop: Offset) -> int | None:
        """Return the last txid of the records from ``stop`` up to ``end``, None if there is none."""
        stop = max(stop, log.log_start_offset)
        while end > stop:
            try:
                entry = log.locate(Offset(end - 1)).entry
                frame = log.read(entry.base, 1, entry.next)
            except CorruptDataError as error:
                # The error's own words name the range; its txids cannot be known, only those before it.
                _log.error("txids lost to damage directory=%s error=%s runbook=RB-01", log.directory, error)
                end = next(start for start, beyond in log.corrupt_ranges if start < end <= beyond)
                continue
            found = last_txid(decode(frame)[1])
            if found is not None:
                return found
            self._passed(entry.length)
            end = entry.base
        return None

    # --- when ---------------------------------------------------------------------------------------

    def _passed(self, size: int) -> None:
        self._batches += 1
        self._size += size

    def _wait_if_due(self) -> None:
        """Let what is known now become the next note, if the search would be long without it."""
        is_long = self._batches >= SEARCHED_BATCHES or self._size >= SEARCHED_BYTES
        if is_long and self._waiting is None:
            self._waiting = self._latest
            self._batches = self._size = 0


def _read(disk: Disk, path: str) -> LastTxid:
    if not disk.exists(path):
        return _UNKNOWN
    try:
        return _decode(decode_state(read_whole(disk, path)))
    except CorruptDataError as error:
        _log.warning("txid file unusable path=%s error=%s", path, error)
        return _UNKNOWN


def _decode(state: dict[str, Json]) -> LastTxid:
    match state:
        case {"txid": None}:
            txid = None
        case {"txid": int(txid)} if not isinstance(txid, bool):
            pass
        case _:
            raise CorruptDataError(f"a txid file says {state}")
    return LastTxid(Offset(natural(state, "end")), txid)
