"""The decider of a stream that its leader writes by itself: records in, appends and outcomes out.

Nobody publishes to such a stream. Its only writer numbers its writes and is told the outcome of each, in the
order of the numbers: that it is committed, or that certainly nothing of it is stored. A write is stored whole
or not at all, next to those before it.

While something is not committed, what comes gathers, unless it is much: then one append more may be in
flight (ADR 0002). If an append is refused, everything behind it is as well.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from envelope.errors import JetstreamError
from envelope.limits import BATCH_BYTES_MAX, GROUP_MESSAGES_MAX
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.format.plain_batch_encoder import Records

APPENDS_IN_FLIGHT_MAX: Final = 2
_MUCH: Final = 64
"""So many records do not wait for what is in flight."""
_RECORD_OVERHEAD_BYTES: Final = 64
"""Of one record in a batch beside its key and value, rounded up."""

OwnRecord = tuple[bytes, bytes | None]
"""Key and value; without a value it is a tombstone."""


class InternalWrite(NamedTuple):
    """Records that are stored together."""

    number: int
    records: Sequence[OwnRecord]

    @property
    def size_bytes(self) -> int:
        """Bytes of the write in a batch, rounded up."""
        return sum(len(key) + len(value or b"") + _RECORD_OVERHEAD_BYTES for key, value in self.records)


@dataclass(frozen=True, slots=True)
class InternalWriteCommitted:
    """The write is stored on every replica in sync, as durable as the stream promises."""

    number: int
    at: TimestampUs
    """Of its records."""


@dataclass(frozen=True, slots=True)
class InternalWriteRefused:
    """Nothing of the write is stored, nor ever will be."""

    number: int
    error: JetstreamError


Outcome = InternalWriteCommitted | InternalWriteRefused


@dataclass(frozen=True, slots=True)
class InternalAppend:
    """Append these records, in one piece, and report the outcome."""

    records: Records
    base: Offset
    leader_epoch: LeaderEpoch


class _Group(NamedTuple):
    base: Offset
    end: Offset
    at: TimestampUs
    writes: tuple[int, ...]
    """Their numbers."""


class InternalWrites:
    """The leader's own writes to one stream during one leader epoch.

    Invariants:
        M6: outcomes come in the order of the writes' numbers, each once.
        M7: what is told as committed is below the high watermark; what is told as refused is in no append
            whose outcome is another.
    """

    def __init__(
        self, subject: str, leader_epoch: LeaderEpoch, log_end_offset: Offset, history: PublisherHistory
    ) -> None:
        """Go on with a log that ends at ``log_end_offset``; records are stored on ``subject``."""
        history.end = log_end_offset
        self._subject = subject.encode()
        self._leader_epoch = leader_epoch
        self._history = history
        self._waiting: deque[InternalWrite] = deque()
        self._waiting_records = 0
        self._in_flight: deque[_Group] = deque()
        self._settling: deque[_Group | InternalWriteRefused] = deque()
        """In the order of the numbers: what is appended and not committed, and what is refused behind it."""
        self._doomed = 0  # appends in flight behind one that was refused: nobody waits for their outcome
        self._suspended: JetstreamError | None = None
        self._hurries = False

    @property
    def waiting(self) -> int:
        """Writes that are in no append yet."""
        return len(self._waiting)

    @property
    def unsettled(self) -> int:
        """Writes that were taken into an append, or refused, and whose outcome is not told yet."""
        groups = (*self._in_flight, *self._settling)
        return sum(len(one.writes) if isinstance(one, _Group) else 1 for one in groups)

    def suspend(self, reason: JetstreamError | None) -> None:
        """Refuse what is in no append for ``reason``, from the next group on; with None take it again."""
        self._suspended = reason

    def hurry(self) -> None:
        """Begin every group as soon as it can be from now on: no more is to come."""
        self._hurries = True

    def offer(self, write: InternalWrite) -> None:
        """Take in one write; not empty."""
        assert write.records, "M6: a write is stored, so there is something to store"
        assert not self._waiting or write.number > self._waiting[-1].number, f"M6: {write.number} comes late"
        self._waiting.append(write)
        self._waiting_records += len(write.records)

    def wants_group(self) -> bool:
        """Return whether `begin_group` is due; every other call may change that."""
        if not self._waiting or self._doomed or len(self._in_flight) >= APPENDS_IN_FLIGHT_MAX:
            return False
        if self._suspended is not None:
            return not self._in_flight  # what is refused is told behind what is stored before it
        if self._hurries or self._waiting_records >= _MUCH:
            return True
        return not self._in_flight and not self._settling

    def begin_group(self, now: TimestampUs) -> InternalAppend | None:
        """Return the next append; None if what waits is refused, which `settled` tells."""
        assert self.wants_group(), "M6: a group is begun when one is wanted"
        if self._suspended is not None:
            self._refuse_waiting(self._suspended)
            return None
        history = self._history
        history.begin_step(history.end)
        history.last_timestamp = max(now, history.last_timestamp)
        group, records = self._gathered(history.end, history.last_timestamp)
        self._in_flight.append(group)
        history.end = group.end
        return InternalAppend(self._built(group, records), group.base, self._leader_epoch)

    def appended(self, end: Offset) -> None:
        """Record that the leader has stored the records of the oldest append in flight."""
        assert not self._doomed, "M7: behind an append that was refused none succeeds"
        group = self._in_flight.popleft()
        assert end == group.end, f"M7: appended up to {end}, asked up to {group.end}"
        self._settling.append(group)

    def append_refused(self, error: JetstreamError) -> None:
        """Record that nothing of the oldest append is stored: the later ones have no place any more."""
        if self._doomed:
            self._doomed -= 1
            return
        assert self._in_flight, "M7: no append is in flight"
        groups = tuple(self._in_flight)
        self._in_flight.clear()
        self._doomed = len(groups) - 1
        self._history.forget_from(groups[0].base)
        self._settling += (InternalWriteRefused(number, error) for group in groups for number in group.writes)
        self._refuse_waiting(error)

    def committed(self, high_watermark: Offset) -> None:
        """Record that records below ``high_watermark`` are committed."""
        self._history.committed(high_watermark, self._history.last_timestamp)

    def settled(self) -> tuple[Outcome, ...]:
        """Return the outcomes that are known and were not told yet; in order (M6)."""
        outcomes: list[Outcome] = []
        settling, high_watermark = self._settling, self._history.high_watermark
        while settling:
            first = settling[0]
            if isinstance(first, InternalWriteRefused):
                outcomes.append(first)
            elif first.end <= high_watermark:
                outcomes += (InternalWriteCommitted(number, first.at) for number in first.writes)
            else:
                break
            settling.popleft()
        return tuple(outcomes)

    def _gathered(self, base: Offset, at: TimestampUs) -> tuple[_Group, list[OwnRecord]]:
        """Take as many of the waiting writes as fit one append; the first one in any case."""
        records: list[OwnRecord] = []
        numbers: list[int] = []
        size_bytes = 0
        while self._waiting and len(records) < GROUP_MESSAGES_MAX:
            size_bytes += self._waiting[0].size_bytes
            if numbers and size_bytes > BATCH_BYTES_MAX:
                break
            write = self._waiting.popleft()
            numbers.append(write.number)
            records += write.records
        self._waiting_records -= len(records)
        return _Group(base, Offset(base + len(records)), at, tuple(numbers)), records

    def _built(self, group: _Group, records: list[OwnRecord]) -> Records:
        fields = RecordFields()
        fields.keys = {row: key for row, (key, _) in enumerate(records)}
        fields.tombstones = {row for row, (_, value) in enumerate(records) if value is None}
        payloads = [value or b"" for _, value in records]
        return build_records(group.base, group.at, [self._subject] * len(records), payloads, fields)

    def _refuse_waiting(self, error: JetstreamError) -> None:
        self._settling += (InternalWriteRefused(write.number, error) for write in self._waiting)
        self._waiting.clear()
        self._waiting_records = 0
