"""The state of the log that a sequencer continues.

A leader changes it as it sequences, a follower as it appends. The newest changes can be taken back
without reading anything again, as a group whose append was refused, or the end of a follower's log, may turn
out not to be the stream's: a failover waits for nobody who remembers.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pyarrow as pa

from envelope.types import NO_OFFSET, LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.publishers.batch_ends import BatchEnds
from jetstream.ingest.publishers.dedupe import DedupeWindow, Name, name_of, names_of
from jetstream.ingest.publishers.sessions import (
    PublisherSession,
    PublisherSessions,
    StoredNames,
    StoredPlace,
    name_in_window,
    only_ids,
    stored_names,
)

_NO_TIMESTAMP: Final = TimestampUs(0)
_NO_EPOCH: Final = LeaderEpoch(0)

_STEPS_MAX: Final = 256
"""What is not committed is a few groups; older steps are let go of."""

_SHORTENED_MAX: Final = 64
"""A window may be shorter by this part of it when something was taken back."""


class TxidMark(NamedTuple):
    """A last txid, and the place in the log from which on it is; marks are ordered as the log is."""

    leader_epoch: LeaderEpoch
    offset: Offset
    txid: int

    def is_before(self, other: "TxidMark") -> bool:
        """Return whether the place is.

        Of a later reign none is, even at a smaller offset: what that reign did not have is gone.
        """
        return (self.leader_epoch, self.offset) < (other.leader_epoch, other.offset)


def last_txid_of(stored: TxidMark | None, txid_set: TxidMark | None) -> int | None:
    """Return a stream's last txid: that of the records, of which those before one that was set do not count.

    Args:
        stored: of the last record that has a txid.
        txid_set: what an operator has said last.
    """
    if stored is None or txid_set is None:
        mark = stored or txid_set
        return None if mark is None else mark.txid
    return txid_set.txid if stored.is_before(txid_set) else max(stored.txid, txid_set.txid)


class Step(NamedTuple):
    """The state before the records from ``base`` on, as far as these have changed it."""

    base: Offset
    last_timestamp: TimestampUs
    txid: TxidMark | None
    last_message_id: bytes | None
    last_message_id_offset: Offset
    sessions: list[tuple[bytes, PublisherSession | None]]
    """In the order in which they were changed."""


@dataclass(slots=True)
class PublisherHistory:
    """The log's past as far as it decides about new messages.

    Fill it by `replay`, in log order, with the stored batches of at least one dedupe window before the end.

    Invariants:
        D4: after `forget_from` it is what it was before the records at that offset came, except that names
            that had left by then stay forgotten.
    """

    dedupe: DedupeWindow
    high_watermark: Offset = NO_OFFSET
    """First offset not known to be committed; repeats of records below it are acked at once."""
    last_timestamp: TimestampUs = _NO_TIMESTAMP
    txid: TxidMark | None = None
    """Of the last record that has one."""
    txid_set: TxidMark | None = None
    """What an operator has said; known while this node leads."""
    leader_epoch: LeaderEpoch = _NO_EPOCH
    """Of the reign, while this node leads."""
    last_message_id: bytes | None = None
    """The last id that a record has had."""
    last_message_id_offset: Offset = NO_OFFSET
    """That record's."""
    sessions: PublisherSessions = field(default_factory=PublisherSessions)
    end: Offset = NO_OFFSET
    """Offset after the last record it knows of."""
    batch_ends: BatchEnds = field(init=False)
    _steps: deque[Step] = field(default_factory=lambda: deque(maxlen=_STEPS_MAX))
    """Of what came last, oldest first; without gaps."""

    def __post_init__(self) -> None:
        self.batch_ends = BatchEnds(self.dedupe)
        self.dedupe.fates.hold_from(self.high_watermark)

    @property
    def last_txid(self) -> int | None:
        """The stream's last txid, below which none is taken; None: any is."""
        return last_txid_of(self.txid, self.txid_set)

    def id_before(self, offset: Offset) -> bytes | None:
        """Return the message id of the record before ``offset``, the last one there is; None without one."""
        return self.last_message_id if self.last_message_id_offset == offset - 1 else None

    # --- what comes ----------------------------------------------------------------------------------

    def begin_step(self, base: Offset) -> Step:
        """Note what is known before the records from ``base`` on come; they end at `end`."""
        if self._steps and self._steps[-1].base == base:
            self._steps.pop()  # nothing came, and so there is nothing to be taken back
        step = Step(
            base=base,
            last_timestamp=self.last_timestamp,
            txid=self.txid,
            last_message_id=self.last_message_id,
            last_message_id_offset=self.last_message_id_offset,
            sessions=[],
        )
        self._steps.append(step)
        return step

    def store(self, place: StoredPlace, step: Step) -> None:
        """Take in a record that is of a session."""
        session = place.place.session
        step.sessions.append((session, self.sessions.find(session)))
        self.sessions.store(place)

    def last_id(self, message_id: bytes, offset: Offset) -> None:
        """Take in the id of the record at ``offset``, which is the last one so far."""
        self.last_message_id, self.last_message_id_offset = message_id, offset

    def store_txid(self, txid: int, offset: Offset) -> None:
        """Take in the txid of the record at ``offset``, the last one so far that has one."""
        self.txid = TxidMark(self.leader_epoch, offset, txid)

    def skip(self, base: Offset, end: Offset, last_timestamp: TimestampUs) -> None:
        """Take in a stored batch whose records have neither message ids nor transaction ids."""
        self.begin_step(base)
        self.end = end
        if last_timestamp < self.last_timestamp:
            follow_time(self, last_timestamp)
        self.last_timestamp = last_timestamp

    def replay(
        self,
        base: Offset,
        end: Offset,
        leader_epoch: LeaderEpoch,
        records: pa.RecordBatch,
        sessions_from: Offset = NO_OFFSET,
    ) -> Sequence[StoredPlace]:
        """Replay the next stored batch, of offsets ``[base, end)``; return the places of its records.

        Sessions know of the records below ``sessions_from`` already.
        """
        step = self.begin_step(base)
        self.end = end
        if records.num_rows == 0:
            return ()
        last_row = records.num_rows - 1
        follow_time(self, TimestampUs(records["timestamp"][last_row].value))
        if records["txid"].null_count < records.num_rows:
            has_one = records["txid"].is_valid()
            offset, txid = (records[name].filter(has_one)[-1].as_py() for name in ("offset", "txid"))
            self.txid = TxidMark(leader_epoch, Offset(offset), txid)
        ids = only_ids(records)
        if ids is not None and self._recover_new(ids, records):
            self.last_id(ids[-1], Offset(end - 1))
            return ()
        names = stored_names(records)
        self.batch_ends.recover(records)
        last_id = dict(names.message_ids).get(last_row)
        if last_id is not None:
            self.last_id(last_id, Offset(end - 1))
        return self._recover(names, records, sessions_from, step)

    def committed(self, high_watermark: Offset, now: TimestampUs) -> None:
        """Take in that records below ``high_watermark`` stay, as is known at the wall clock's ``now``."""
        self.high_watermark = max(self.high_watermark, high_watermark)
        fates = self.dedupe.fates
        if high_watermark > fates.uncommitted:  # otherwise a follower has observed it before
            fates.committed(high_watermark, max(now, self.last_timestamp))
        steps = self._steps
        while steps and steps[0].base < high_watermark:  # these records are never forgotten
            steps.popleft()

    def committed_state(self) -> tuple[TxidMark | None, list[tuple[bytes, PublisherSession]]]:
        """Return the last txid and the sessions without what came in records that are not committed."""
        txid, sessions = self.txid, self.sessions.copy()
        for step in reversed(self._steps):
            if step.base < self.high_watermark:
                break
            txid = step.txid
            for session, before in reversed(step.sessions):
                sessions.put(session, before)
        return txid, list(sessions.items())

    def lead_from(self, high_watermark: Offset, now: TimestampUs) -> None:
        """Begin a reign whose leader knows that records below ``high_watermark`` are committed."""
        self.high_watermark = high_watermark
        self.dedupe.fates.committed(high_watermark, max(now, self.last_timestamp))

    # --- what goes -----------------------------------------------------------------------------------

    def keep_all(self) -> None:
        """Let go of everything that it would take to forget something."""
        self._steps.clear()

    def can_forget_from(self, log_end_offset: Offset, last_timestamp: TimestampUs) -> bool:
        """Return whether `forget_from` would leave what is as good as reading back a log that ends there."""
        if log_end_offset < self.end and self._step_at(log_end_offset) is None:
            return False
        # The windows are shorter by so much. A clock that was wrong may have let all of them expire.
        shortened_us = abs(self.last_timestamp - last_timestamp)
        windows_us = [window for window in (self.dedupe.window_us, self.sessions.window_us) if window]
        return shortened_us * _SHORTENED_MAX <= min(windows_us)

    def forget_from(self, log_end_offset: Offset) -> None:
        """Take back the records at ``log_end_offset`` and after, which are not in the log (any more).

        They are all that came from some step on, and none of them was said to be `committed`.
        """
        if log_end_offset >= self.end:
            self.end = log_end_offset
            return
        first = self._step_at(log_end_offset)
        assert first is not None, "D4: it is known what was before"
        self.dedupe.forget_from(log_end_offset)
        self.batch_ends.forget_from(log_end_offset)
        steps = self._steps
        while steps and steps[-1].base >= log_end_offset:
            for session, before in reversed(steps.pop().sessions):
                self.sessions.put(session, before)
        self.end = log_end_offset
        self.last_timestamp, self.txid = first.last_timestamp, first.txid
        self.last_message_id = first.last_message_id
        self.last_message_id_offset = first.last_message_id_offset

    def _step_at(self, offset: Offset) -> Step | None:
        first = next((step for step in self._steps if step.base >= offset), None)
        return first if first is not None and first.base == offset else None

    # --- names ---------------------------------------------------------------------------------------

    def _recover_new(self, ids: Sequence[bytes], records: pa.RecordBatch) -> bool:
        """Remember records that came together, if all their ids are new; otherwise do nothing."""
        offsets, timestamps = records["offset"], records["timestamp"]
        first, timestamp = Offset(offsets[0].as_py()), timestamps[0].value
        if offsets[-1].as_py() - first != len(ids) - 1 or timestamps[-1].value != timestamp:
            return False
        names = names_of(ids)
        if not self.dedupe.are_new(names):
            return False
        self.dedupe.remember_new(names, first, TimestampUs(timestamp))
        self.expire(TimestampUs(timestamp))
        return True

    def expire(self, now: TimestampUs) -> None:
        """Forget the names and sessions that are too old at the log's time ``now``, or too many."""
        self.dedupe.expire(now)
        self.sessions.expire(now, self.dedupe.fates.held, self.dedupe.fates.uncommitted)

    def _recover(
        self, names: StoredNames, records: pa.RecordBatch, sessions_from: Offset, step: Step
    ) -> Sequence[StoredPlace]:
        """Remember what the records are called."""
        called: dict[int, Name] = {row: name_of(message_id) for row, message_id in names.message_ids}
        called.update((row, name_in_window(place)) for row, place in names.places)
        if not called:
            return ()
        rows = sorted(called)
        offsets: list[int] = records["offset"].take(pa.array(rows)).to_numpy().tolist()
        timestamps = records["timestamp"].take(pa.array(rows)).cast(pa.int64()).to_numpy().tolist()
        stored = {
            row: (Offset(offset), TimestampUs(timestamp))
            for row, offset, timestamp in zip(rows, offsets, timestamps, strict=True)
        }
        for row, (offset, timestamp) in stored.items():
            self.dedupe.remember(called[row], offset, timestamp)
        places = [StoredPlace(place, *stored[row]) for row, place in names.places]
        for place in places:
            if place.offset >= sessions_from:
                self.store(place, step)
        self.expire(TimestampUs(timestamps[-1]))
        return places


def follow_time(history: PublisherHistory, timestamp: TimestampUs) -> None:
    """Let the log's time go on from ``timestamp``, also if that is earlier.

    Then the records so far count as of then at the latest: their names and sessions stay for a window from
    there on. Names that the time before has let expire may be forgotten.
    """
    if timestamp < history.last_timestamp:
        history.dedupe.fall_back(timestamp)
        history.sessions.fall_back(timestamp)
    history.last_timestamp = timestamp
