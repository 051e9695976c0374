"""Publisher sessions: the last message of each, so that the next one is known from a repeat or a gap.

A session is a publisher's own count of its messages. Of each, its last record is kept, in the order of
log time, so that sessions expire as message ids do: a clock set back brings none back, and a restart, or
another replica that has appended the same records, knows the same. Offsets of earlier messages, with which
repeats are answered, are in the `DedupeWindow`, among the message ids.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Final, NamedTuple, cast

import pyarrow as pa
import pyarrow.compute as pc

from envelope.errors import InvalidHeader
from envelope.headers import MESSAGE_ID, SEQUENCE, SEQUENCE_AFTER, SESSION, SessionPlace, session_place
from envelope.limits import SESSIONS_MAX
from envelope.types import Offset, TimestampUs

WINDOW_US_DEFAULT: Final = 7 * 24 * 3_600 * 1_000_000
"""How long a session is kept after its last message: longer than most publishers are away."""

_SEQUENCE_BITS: Final = 64
_NAMES: Final = pa.array([MESSAGE_ID, SESSION, SEQUENCE, SEQUENCE_AFTER])
_BEFORE_ALL: Final = -(1 << 62)
_AFTER_ALL: Final = Offset(1 << 62)


class PublisherSession(NamedTuple):
    """The last record of a session.

    Attributes:
        sequence: of the message.
        offset: of the record.
        timestamp: of the record.
        is_gapless: every message of the session has named the one before it, and its number was the next one:
            all numbers from 1 to this one are stored. A number that was left out was perhaps that of a
            message that was refused, which must not be taken for a repeat.
    """

    sequence: int
    offset: Offset
    timestamp: TimestampUs
    is_gapless: bool


class StoredPlace(NamedTuple):
    """A stored record, and its place in a session."""

    place: SessionPlace
    offset: Offset
    timestamp: TimestampUs


def name_in_window(place: SessionPlace) -> int:
    """Return what a place is remembered as: no message id, as these are bytes."""
    digest = int.from_bytes(blake2b(place.session, digest_size=16).digest())
    return digest << _SEQUENCE_BITS | place.sequence


class PublisherSessions:
    """The sessions of one stream, by their ids.

    Invariants:
        D3: a session's sequence and offset only increase, until it has expired or is taken back.
            Held by test_a_session_is_what_the_list_says.
        D6: a session is known while the fate of its last record is not.
            Held by test_a_session_is_known_while_its_last_record_is_not_committed.
    """

    def __init__(self, window_us: int = WINDOW_US_DEFAULT, sessions_max: int = SESSIONS_MAX) -> None:
        """Keep the ``sessions_max`` used last, each for ``window_us`` microseconds of log time."""
        assert window_us > 0 < sessions_max, "a session is kept for a while"
        self._window_us = window_us
        self._sessions_max = sessions_max
        self._oldest_first: OrderedDict[bytes, PublisherSession] = OrderedDict()
        self._expired_us = _BEFORE_ALL
        self._held = _AFTER_ALL  # sessions whose last record is there or after do not expire
        self._pushed_out_us = _BEFORE_ALL
        self._newest_us = _BEFORE_ALL

    def __len__(self) -> int:
        return len(self._oldest_first)

    @property
    def window_us(self) -> int:
        """How long a session is kept after its last message, microseconds."""
        return self._window_us

    def effective_window_us(self, now: TimestampUs) -> int:
        """Return how long a session is surely kept: less than the window if some are pushed out by count."""
        pushed_out_us = self._pushed_out_us
        too_many = len(self) - self._sessions_max  # they leave when the next message comes
        if too_many > 0:
            last = next(islice(self._oldest_first.values(), too_many - 1, None))
            pushed_out_us = max(pushed_out_us, last.timestamp)
        return max(0, min(self._window_us, now - max(self._expired_us, pushed_out_us)))

    def resize(self, window_us: int) -> None:
        """Change the window from now on; what has expired stays expired."""
        assert window_us > 0, "a session is kept for a while"
        self._window_us = window_us

    def items(self) -> Iterator[tuple[bytes, PublisherSession]]:
        """Yield all sessions."""
        return iter(self._oldest_first.items())

    def find(self, session: bytes) -> PublisherSession | None:
        """Return a session's last record; None if it has none, or has expired."""
        found = self._oldest_first.get(session)
        return found if found is not None and self._is_kept(found) else None

    def _is_kept(self, last: PublisherSession) -> bool:
        return last.timestamp > self._expired_us or last.offset >= self._held

    def store(self, stored: StoredPlace) -> None:
        """Take in a record; one with a number that is not above its session's last changes nothing."""
        (session, sequence, after), offset, timestamp = stored
        if timestamp < self._newest_us:
            self.fall_back(timestamp)
        self._newest_us = timestamp
        before = self.find(session)
        if before is not None and offset <= before.offset:
            return  # what is known, by a note, is of a later record than this one
        if before is not None and before.timestamp <= timestamp - self._window_us:
            before = None  # expired before this one began it anew
        if before is not None and sequence <= before.sequence:
            return
        is_gapless = after == (0 if before is None else before.sequence) and sequence == after + 1
        is_gapless = is_gapless and (before is None or before.is_gapless)
        self.put(session, PublisherSession(sequence, offset, timestamp, is_gapless))

    def put(self, session: bytes, last: PublisherSession | None) -> None:
        """Make ``last`` what is known of a session; None: nothing."""
        if last is None:
            self._oldest_first.pop(session, None)
            return
        self._oldest_first[session] = last
        self._oldest_first.move_to_end(session)

    def forget_from(self, log_end_offset: Offset) -> None:
        """Forget sessions whose last records are at ``log_end_offset`` or after: these are not there."""
        absent = [session for session, last in self.items() if last.offset >= log_end_offset]
        for session in absent:
            self.put(session, None)

    def expire(self, now: TimestampUs, held: Offset = _AFTER_ALL, uncommitted: Offset = _AFTER_ALL) -> None:
        """Forget what was last used a window before the log's time ``now``, and what is too much.

        But not by age those with a record at ``held`` or after, nor by number those with one that is
        ``uncommitted``.
        """
        self._expired_us = max(self._expired_us, now - self._window_us)
        self._held = held
        sessions = self._oldest_first
        while sessions:
            last = next(iter(sessions.values()))
            if self._is_kept(last):
                if len(sessions) <= self._sessions_max or last.offset >= uncommitted:
                    return
                self._pushed_out_us = last.timestamp
            assert last.offset < uncommitted, f"D6: {last} leaves, unknown from {uncommitted}"
            sessions.popitem(last=False)

    def fall_back(self, now: TimestampUs) -> None:
        """Let the log's time go on from ``now``: no session counts as used later."""
        self._newest_us = now
        self._expired_us = min(self._expired_us, now - self._window_us)
        self._pushed_out_us = min(self._pushed_out_us, now)
        for session, last in self._oldest_first.items():
            if last.timestamp > now:
                self._oldest_first[session] = last._replace(timestamp=now)

    def copy(self) -> "PublisherSessions":
        """Return another one that knows the same sessions."""
        other = PublisherSessions(self._window_us, self._sessions_max)
        for session, last in self.items():
            other.put(session, last)
        return other


class StoredNames(NamedTuple):
    """The publishers' names of the records of a batch, in their order."""

    message_ids: Sequence[tuple[int, bytes]]
    """Row and id."""
    places: Sequence[tuple[int, SessionPlace]]
    """Row and place."""


_NO_NAMES: Final = StoredNames((), ())


def only_ids(records: pa.RecordBatch) -> list[bytes] | None:
    """Return the message ids of records that have one each and no other header; None if one is another."""
    headers = records["headers"]
    fields = pc.list_flatten(headers)
    if len(fields) != len(headers):
        return None
    names, values = pc.struct_field(fields, "key"), pc.struct_field(fields, "value")
    are_alone = pc.equal(pc.list_value_length(headers), pa.scalar(1, pa.int32()))
    if not (pc.all(are_alone).as_py() and pc.all(pc.equal(names, pa.scalar(MESSAGE_ID))).as_py()):
        return None
    ids: list[bytes | None] = values.to_numpy(
        zero_copy_only=False
    ).tolist()  # to_pylist takes five times as long
    return cast("list[bytes]", ids) if all(ids) else None


def stored_names(records: pa.RecordBatch) -> StoredNames:
    """Return what the headers of stored records say; the first of a repeated header counts.

    Headers that the sequencer would have refused are of a time when they meant nothing, and mean nothing.
    """
    headers = records["headers"]
    fields = pc.list_flatten(headers)
    if len(fields) == 0:
        return _NO_NAMES
    keys = pc.struct_field(fields, "key")
    is_ours = pc.is_in(keys, _NAMES)
    if not pc.any(is_ours).as_py():
        return _NO_NAMES
    rows: list[int] = pc.filter(pc.list_parent_indices(headers), is_ours).to_numpy().tolist()
    names: list[str] = pc.filter(keys, is_ours).to_pylist()
    values: list[bytes | None] = pc.filter(pc.struct_field(fields, "value"), is_ours).to_pylist()
    found: dict[int, dict[str, bytes]] = {}
    for row, name, value in zip(rows, names, values, strict=True):
        found.setdefault(row, {}).setdefault(name, value or b"")
    ids = [(row, each[MESSAGE_ID]) for row, each in found.items() if each.get(MESSAGE_ID)]
    return StoredNames(ids, list(_places(found.items())))


def _places(rows: Iterable[tuple[int, dict[str, bytes]]]) -> Iterator[tuple[int, SessionPlace]]:
    for row, headers in rows:
        if headers.get(MESSAGE_ID):
            continue
        try:
            place = session_place(headers)
        except InvalidHeader:
            continue
        if place is not None:
            yield row, place
