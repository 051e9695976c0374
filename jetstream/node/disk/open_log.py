"""From a stream's directory to everything its task begins with; runs on the disk thread.

The log recovers itself (`Log.open`). The sequencer's memory, message ids above all, is read
back from the stored batches of one dedupe window, so that a restart answers a retry as the process before
would have; the last transaction id and the publishers' sessions however old they are
(`PublisherStateFile`). A follower replays the batches that it appends, so that it can lead at once.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from envelope.errors import CorruptDataError, JetstreamError
from envelope.limits import MIB, SEGMENT_BYTES_DEFAULT, SEGMENT_BYTES_MIN
from envelope.types import Compact, Compression, LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory, TxidMark
from jetstream.ingest.publishers.sessions import PublisherSessions
from jetstream.log.disk.port import Disk
from jetstream.log.format.batch import SealedBatch, decode, iter_frames, read_header, records_of
from jetstream.log.format.plain_batch_encoder import is_plain
from jetstream.log.log import Log, LogConfig
from jetstream.log.recovery import Verify
from jetstream.log.segments.log_config import CompactionConfig
from jetstream.node.disk.history_file import (
    LastTxid,
    PublisherState,
    PublisherStateFile,
    later,
    put_note,
    read_note,
)
from metadata.catalog.tables import TierMark
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)

_READ_BYTES: Final = 4 * MIB
_SEGMENTS_KEPT: Final = 4
"""Of the bytes to keep, unless a stream has its own size of segments: the last one is a quarter at most."""


class OpenedLog:
    """A recovered log, and its past as far as it decides about new messages; for the disk thread.

    The leader takes `history` over and changes it; when the reign has ended, `settle`.

    Attributes:
        log: itself.
        history: what a sequencer must know; its high watermark is the caller's to set.
        fates: of the history's records; a follower observes there what is committed.
        note: keeps the note of the last transaction id and of the sessions.
        is_stale: what must be remembered could not be read back, and is to be before anything is stored.
    """

    def __init__(self, disk: Disk, log: Log, config: StreamConfig) -> None:
        """Read back what must be remembered of ``log``; raises as `rebuild`."""
        self.log = log
        self._disk = disk
        dedupe = DedupeWindow(window_us(config.dedupe_window), config.dedupe_ids_max)
        self.history, self.note = self._read_back(dedupe, PublisherSessions(window_us(config.session_window)))
        self.fates = self.history.dedupe.fates
        self._replayed_end = log.log_end_offset
        self._first_unreplayed: tuple[Offset, TimestampUs] | None = None
        self.is_stale = False

    def apply_observed(self) -> None:
        """Record the commits that `RecordFates.observe` kept, as far as their records are known."""
        self.fates.apply_observed(self.history.end)

    def must_hold(self, batches: Sequence[SealedBatch], committed: Offset) -> Offset | None:
        """Return what must be noted before ``batches`` are stored: see `PublisherStateFile.must_hold`.

        Records below ``committed`` were committed when they came.
        """
        if not batches:
            return None
        if self.fates.observed:
            self.fates.apply_observed(self.history.end)
        if self._first_unreplayed is None or self._replayed_end == self.log.reader.log_end_offset:
            self._first_unreplayed = None
            for header, _ in batches:
                if header.next > committed:
                    self._first_unreplayed = header.base, header.max_timestamp
                    break
        return self.note.must_hold(batches[-1][0].max_timestamp, self._first_unreplayed)

    def skip(self, batches: Sequence[SealedBatch]) -> bool:
        """Replay batches as `replay_batches` if they are all plain; otherwise return False and do nothing.

        Nearly all are, and to decode one costs as much as to store it.
        """
        for _, frame in batches:
            if not is_plain(frame):
                return False
        for header, frame in self._stored(batches):
            self.history.skip(header.base, header.next, header.max_timestamp)
            self.note.appended(header.next, None, len(frame))
            self._replayed_end = header.next
        return True

    def replay_batches(self, batches: Sequence[SealedBatch]) -> None:
        """Replay those of ``batches``, which were given to `Log.append_sealed`, that are stored.

        Batches that are intact but no Arrow of ours fail the log: no reader could read on behind
        them. Nothing is replayed to a log that has failed.
        """
        try:
            for header, frame in self._stored(batches):
                records = records_of(header, frame)
                places = self.history.replay(header.base, header.next, header.leader_epoch, records)
                self.note.appended(header.next, self.history.txid, len(frame), places)
                self._replayed_end = header.next
        except CorruptDataError as error:
            _log.error("unreadable batch directory=%s error=%s runbook=RB-01", self.log.directory, error)
            self.log.writer.fail(error)

    def _stored(self, batches: Sequence[SealedBatch]) -> Sequence[SealedBatch]:
        """Return those of ``batches`` that are stored and were not replayed before."""
        start, end = 0, len(batches)
        while start < end and batches[start][0].next <= self._replayed_end:
            start += 1
        while start < end and batches[end - 1][0].next > self.log.reader.log_end_offset:
            end -= 1
        return batches[start:end] if self.log.writer.failed is None else ()

    def settle(self) -> None:
        """Forget what is not in the log: it was cut, or a reign has ended whose last groups were refused.

        Raises:
            StorageError: as `rebuild`, which is rarely needed.
        """
        log, history = self.log, self.history
        end, is_empty = log.log_end_offset, log.log_start_offset == log.log_end_offset
        last_timestamp = history.last_timestamp if is_empty else log.reader.last_timestamp
        if self.is_stale or not history.can_forget_from(end, last_timestamp):
            self.rebuild()
            return
        is_ahead = history.end > end
        history.forget_from(end)
        if not is_empty:  # otherwise the time of the records that are gone is unknown
            history.last_timestamp = log.reader.last_timestamp
        if is_ahead:
            self.note.cut_back(LastTxid(end, history.txid), history.sessions.copy())
        self._replayed_end = end

    def rebuild(self) -> None:
        """Read back what must be remembered.

        Raises:
            StorageError, OutOfResources: the disk refused; `refresh` tries again.
        """
        self.is_stale = True
        before = self.history
        dedupe = DedupeWindow(before.dedupe.window_us, before.dedupe.names_max)
        sessions = PublisherSessions(before.sessions.window_us)
        overdue = self.fates.overdue(before.last_timestamp)
        self.history, self.note = self._read_back(dedupe, sessions, overdue)
        self.fates = dedupe.fates
        self._replayed_end = self.log.log_end_offset
        self.is_stale = False

    def refresh(self) -> None:
        """Read back what could not be read back before, if there is any; raises as `rebuild`."""
        if self.is_stale:
            self.rebuild()

    def reconfigure(self, config: StreamConfig) -> None:
        """Remember as ``config`` says from now on; while this node leads, the leader sees to `history`."""
        self.history.dedupe.resize(window_us(config.dedupe_window), config.dedupe_ids_max)
        self.history.sessions.resize(window_us(config.session_window))

    def take_note(self, noted: PublisherState) -> None:
        """Apply a leader's state of committed records, durably, before more is stored.

        Raises:
            DiskFull, StorageError, FsyncFailed: to be taken in again.
        """
        known = self.history.sessions
        newer = [
            (session, last)
            for session, last in noted.sessions
            if (own := known.find(session)) is None or own.sequence <= last.sequence
        ]
        for session, last in newer:
            known.put(session, last)
        self.history.keep_all()
        self.history.txid = later(self.history.txid, noted.last.txid)
        self.note.apply(newer, noted.last.txid, self.log)

    def begin_anew(self, offset: Offset, noted: PublisherState | None, reset: Callable[[], None]) -> None:
        """Empty the log by ``reset``; it then begins at ``offset``.

        Args:
            offset: where it begins.
            noted: what the leader knows of committed records, which takes the place of what is known here;
                None: that stays, as the log is the beginning of the leader's, or keeps its start.
            reset: empties it.

        Raises:
            DiskFull: nothing has changed, but perhaps the note.
            StorageError, FsyncFailed: as `Log.reset_to`.
        """
        # The note first: the new log without it would take repeats for new. With the old log it does no
        # harm, as that is of no use to anybody: its leader has said to begin anew, and says so again.
        if noted is not None:
            put_note(self._disk, self.log.directory, noted._replace(last=noted.last._replace(end=offset)))
        reset()
        self.rebuild()

    def _read_back(
        self, dedupe: DedupeWindow, sessions: PublisherSessions, overdue: Offset | None = None
    ) -> tuple[PublisherHistory, PublisherStateFile]:
        log = self.log
        history = PublisherHistory(dedupe, sessions=sessions)
        noted = read_note(self._disk, log.directory)
        was_cut = noted.last.end > log.log_end_offset
        for session, last in () if was_cut else noted.sessions:
            sessions.put(session, last)
        unnoted = Offset(0) if was_cut else noted.last.end
        window_start = TimestampUs(max(0, log.reader.last_timestamp - dedupe.window_us))
        held = _start_of_history(log, window_start)
        for old in (overdue, noted.held):
            held = held if old is None else min(held, max(old, log.log_start_offset))
        dedupe.fates.hold_from(held)  # whether these are committed is not known yet
        start = min(held, max(unnoted, log.log_start_offset))
        searched_batches = searched_bytes = 0
        for header, frame in _frames(log, start):
            if header.next > unnoted:
                searched_batches += 1
                searched_bytes += len(frame)
            if is_plain(frame):
                history.skip(header.base, header.next, header.max_timestamp)
            else:
                history.replay(header.base, header.next, header.leader_epoch, decode(frame)[1], unnoted)
            if header.base < unnoted:
                history.keep_all()  # so that the note's sessions do not go with their records
        history.end = log.log_end_offset
        history.last_timestamp = log.reader.last_timestamp
        if was_cut:
            _restore(noted, sessions, log.log_end_offset)
        txid = history.txid if was_cut and history.txid is not None else later(noted.last.txid, history.txid)
        history.txid = txid
        if history.last_timestamp:  # the note may be of a time that was ahead
            sessions.fall_back(history.last_timestamp)
        sessions.expire(log.reader.last_timestamp, dedupe.fates.held, dedupe.fates.uncommitted)
        latest = LastTxid(log.log_end_offset, txid)
        note = PublisherStateFile(
            disk=self._disk,
            directory=log.directory,
            noted=noted,
            latest=latest,
            sessions=sessions.copy(),
            fates=dedupe.fates,
        )
        if was_cut and log.failed is None:
            note.replace()
        note.appended(latest.end, None, searched_bytes, batches=searched_batches)
        return history, note


def _restore(noted: PublisherState, sessions: PublisherSessions, log_end_offset: Offset) -> None:
    """Restore from the note the state that is not in the kept records of a log that was cut."""
    for session, last in noted.sessions:
        if last.offset >= log_end_offset:
            continue
        found = sessions.find(session)
        if found is None or found.offset <= last.offset:
            sessions.put(session, last)


def log_config(config: StreamConfig) -> LogConfig:
    """Return the part of a stream's configuration that its log obeys, in the log's units."""
    rules, is_compacted = total_retention(config), config.compact is Compact.KEY
    if config.tier:
        rules = _local_retention(config)
    segment_age = config.segment_age
    if config.tier and config.local_retention is not None:
        # Only sealed segments are uploaded, and so dropped: one with few messages must come to that, too.
        segment_age = min(segment_age or config.local_retention, config.local_retention)
    if is_compacted:
        # Only sealed segments are compacted: a stream with few messages must come to that, too.
        segment_age = min(segment_age or config.compact_age_max, config.compact_age_max)
    return replace(
        rules,
        segment_bytes=_segment_bytes(config),
        segment_age_us=_microseconds(segment_age),
        sync=config.sync,
        compaction=_compaction(config) if is_compacted else None,
        rewrite_after_us=window_us(config.rewrite_after) or None,
    )


def _segment_bytes(config: StreamConfig) -> int:
    """Return where segments roll: by default so early that retention by bytes keeps not much more."""
    limits = (config.retention.bytes, config.local_retention_bytes if config.tier else None)
    kept = min((limit for limit in limits if limit is not None), default=None)
    if kept is None or config.segment_bytes != SEGMENT_BYTES_DEFAULT:
        return config.segment_bytes
    return max(SEGMENT_BYTES_MIN, min(SEGMENT_BYTES_DEFAULT, kept // _SEGMENTS_KEPT))


def total_retention(config: StreamConfig) -> LogConfig:
    """Return the rules by which records go for good, wherever they lie."""
    retention = config.retention
    return LogConfig(
        retention_age_us=_microseconds(retention.age),
        retention_bytes=retention.bytes,
        retention_messages=retention.messages,
    )


def _local_retention(config: StreamConfig) -> LogConfig:
    """Return the rules by which what is in the object store goes from this node's disk."""
    ages = [age for age in (config.local_retention, config.retention.age) if age is not None]
    # Message ids of one window are read back from the records at every start.
    age = max(min(ages), config.dedupe_window) if ages else None
    return LogConfig(
        retention_age_us=_microseconds(age),
        retention_bytes=config.local_retention_bytes,
        retention_lag_us=window_us(config.dedupe_window),
    )


def _compaction(config: StreamConfig) -> CompactionConfig:
    return CompactionConfig(
        dirty_ratio=config.compact_dirty_ratio,
        age_us=window_us(config.compact_age_max),
        tombstone_retention_us=window_us(config.tombstone_retention),
        # Message ids of one window are read back from the records at every start.
        lag_us=window_us(config.dedupe_window),
        # What is rewritten anyway is not to become larger by it.
        codec=Compression.ZSTD if config.rewrite_after else config.compression,
    )


def open_log(disk: Disk, directory: str, config: StreamConfig, now: TimestampUs, verify: Verify) -> OpenedLog:
    """Recover the log in ``directory``, and read back what must be remembered; no epoch begins.

    A log whose end is damaged is opened for reading only (`Log.failed`).

    Raises:
        StorageError, DiskFull: the disk refused.
    """
    log = Log.open(disk, directory, log_config(config), now, verify)
    for problem in log.recovery.problems:
        if log.failed is None and not log.reader.corrupt_ranges:
            # A torn group was cut, or a file derived anew.
            _log.warning("log recovered directory=%s finding=%s", directory, problem)
        else:
            _log.error("log damaged directory=%s problem=%s runbook=RB-01", directory, problem)
    try:
        return OpenedLog(disk, log, config)
    except JetstreamError:
        log.close(clean=False)
        raise


def begin_reign(opened: OpenedLog, leader_epoch: LeaderEpoch, now: TimestampUs) -> None:
    """Begin ``leader_epoch`` at the log's end, durably.

    Raises:
        StorageError, FsyncFailed: the log has seen this epoch or a later one, or the disk refused.
        DiskFull: the epoch has not begun.
        StreamOffline: the log has failed, or its end is damaged.
    """
    opened.refresh()
    opened.log.writer.begin_epoch(leader_epoch, now)
    opened.apply_observed()
    # Only an unclean election lets who has less than the note speaks of lead.
    opened.history.sessions.forget_from(opened.log.log_end_offset)


def begin_at_tier(opened: OpenedLog, mark: TierMark) -> None:
    """Begin an empty log where the object store ends: what this one has, if anything, is not what follows.

    Raises:
        DiskFull, StorageError, FsyncFailed: as `OpenedLog.begin_anew`.
    """
    txid = mark.last_txid
    last = None if txid is None else TxidMark(mark.last_epoch, Offset(mark.end - 1), txid)
    noted = PublisherState(LastTxid(mark.end, last), ())
    opened.begin_anew(mark.end, noted, lambda: opened.log.reset_to(mark.end))


def needs_tier(log: Log, mark: TierMark | None, *, is_unclean: bool) -> bool:
    """Return whether a log that is to be led must begin anew where the object store ends.

    It lacks what is there: it is the first log of a stream that is made again, or, as only an unclean
    election can have it, one that was not in sync. Such a log may also have other records than the store;
    that shows where both have some of the same offsets.
    """
    if mark is None or mark.end == 0:
        return False
    if log.log_end_offset < mark.end:
        return True
    has_some = max(log.log_start_offset, mark.start) < mark.end
    return is_unclean and has_some and log.reader.epoch_at(Offset(mark.end - 1)) != mark.last_epoch


def _start_of_history(log: Log, window_start: TimestampUs) -> Offset:
    """Return where to read from: the window's start, but at least the last record."""
    last = Offset(max(log.log_start_offset, log.log_end_offset - 1))
    try:
        return min(last, log.reader.offset_for_timestamp(window_start))
    except CorruptDataError as error:
        _log.error("dedupe window begins in damage directory=%s error=%s runbook=RB-01", log.directory, error)
        return log.log_start_offset


def _frames(log: Log, start: Offset) -> Iterator[SealedBatch]:
    """Yield the stored batches from ``start`` on, leaving out what is damaged."""
    offset = start
    while offset < log.log_end_offset:
        try:
            data = log.reader.read(offset, _READ_BYTES, log.log_end_offset)
        except CorruptDataError as error:
            beyond = _end_of_damage(log, offset)
            if beyond is not None:
                # The error's own words name the range; its records cannot be remembered, only passed over.
                _log.error(
                    "message ids, sessions and txids lost to damage directory=%s error=%s runbook=RB-01",
                    log.directory,
                    error,
                )
                offset = beyond
            # Otherwise it was found further on just now: the next read ends before it.
            continue
        for frame in iter_frames(data):
            header = read_header(frame)
            yield header, frame
            offset = header.next


def _end_of_damage(log: Log, offset: Offset) -> Offset | None:
    return next((end for start, end in log.reader.corrupt_ranges if start <= offset < end), None)


def _microseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else window_us(duration)
