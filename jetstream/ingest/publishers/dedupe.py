"""The recently stored records of a stream, by the names of their publishers: a retry is not stored again.

A name is a message id, or a place in a publisher's session (`jetstream.ingest.publishers.sessions`). Names
leave by age,
counted in the log's own timestamps, so that a clock set back brings none back and a restart remembers what
was remembered before; and by count, so that memory is bounded. A rollback finds all that it takes back, and
that has not left, at the young end.

A name does not leave while its record's fate is unknown: stored, and neither committed nor taken back. If the
commit comes late, the window is counted from there: before it no publisher can have heard its ack.

Names lie in generations of `GENERATION_NAMES`, newest first, each with a dictionary of its own, which the
interpreter never has to let grow: 30 bytes a name, where one that names leave singly comes to 84. Its values
are positions, whose objects all dictionaries share; what is known of a name is in arrays at its position. The
oldest generation is dropped as a whole. So that not every generation has to be asked, a byte for each value
of some bits of a name's hash tells which one got such a name last; nothing depends on it but speed.

A name costs 46 bytes, its share of that table and of what is not dropped yet, and itself: 64 to 80 bytes as
an object. Longer ids are remembered by a digest, 47 bytes of BLAKE2b, a length that no id has that is kept as
it is: nobody is able to find two ids with one digest.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from itertools import repeat
from typing import Final

from envelope.types import Offset, TimestampUs
from jetstream.ingest.publishers.record_fates import RecordFates

GENERATION_NAMES: Final = (1 << 15) * 2 // 3
"""A dictionary of 2**15 places takes so many before it grows; to drop one takes a millisecond or two."""

DIGEST_BYTES: Final = 47
"""An object of so many bytes takes 80 in the interpreter's allocator, one of more takes 96."""

_TAGS: Final = 1 << 22
_TAGS_MASK: Final = _TAGS - 1
_TAG_VALUES: Final = 255
"""Tags are given out in turn, from 1 on; 0 is that of no generation."""

UNCOMMITTED_NAMES_MAX: Final = 1 << 19
"""Names of records that are not committed; beyond it new messages are refused. Twice as many are kept."""

_SMALL_GENERATIONS_MAX: Final = 128
"""Beyond it generations are large, so that there are never as many as tags."""

_BEFORE_ALL: Final = -(1 << 62)
"""Earlier than any timestamp, microseconds."""

_MICROSECOND: Final = timedelta(microseconds=1)
_POSITIONS: Final = tuple(range(GENERATION_NAMES))
"""An object for each position, made once."""

Name = bytes | int
"""A message id as `name_of` makes it, or a place in a session."""


def name_of(message_id: bytes) -> bytes:
    """Return what a message id is remembered as."""
    if len(message_id) < DIGEST_BYTES:
        return message_id
    return blake2b(message_id, digest_size=DIGEST_BYTES).digest()


def names_of(message_ids: Sequence[bytes]) -> Sequence[bytes]:
    """Return what each is remembered as."""
    if max(map(len, message_ids), default=0) < DIGEST_BYTES:
        return message_ids
    return [name_of(message_id) for message_id in message_ids]


@dataclass(slots=True)
class _Generation:
    """Names that came one after the other; one that came twice is found at its later position."""

    tag: int
    first: int
    """How many names of the window came before."""
    positions: dict[Name, int] = field(default_factory=dict)
    offsets: "array[int]" = field(default_factory=lambda: array("q"))
    timestamps: "array[int]" = field(default_factory=lambda: array("q"))

    @property
    def end(self) -> int:
        """How many names of the window came up to its last."""
        return self.first + len(self.offsets)

    def take_back_from(self, offset: Offset) -> None:
        """Take back all names of records at ``offset`` and after."""
        offsets, positions = self.offsets, self.positions
        while offsets and offsets[-1] >= offset:
            offsets.pop()
            self.timestamps.pop()
            if positions:
                name, position = positions.popitem()
                if position != len(offsets):
                    positions[name] = position  # of an older record: the last one's name came again


class DedupeWindow:
    """Names by offset.

    Attributes:
        fates: which names stay because their records are not committed, or were committed late.

    Invariants:
        D1: a name that is found is that of a record within the window, the last that has it.
        D2: offsets and timestamps never decrease from name to name.
        D5: the name of a record whose fate is unknown is found, however old it is.
            Held by test_uncommitted_names.py.
    """

    def __init__(self, window_us: int, names_max: int) -> None:
        """Remember the ``names_max`` newest names for ``window_us`` microseconds of log time (0: none)."""
        self._expired_us = _BEFORE_ALL  # names as old as this are forgotten
        self._forgotten_us = _BEFORE_ALL  # so are some as old as this, by count
        self._first = 0  # names that came before this one are forgotten by count
        self._newest_first = [_Generation(1, 0)]
        self._tags: bytearray | None = None  # once there are two generations
        self.fates = RecordFates(self._timestamp_from)
        self.resize(window_us, names_max)

    def __len__(self) -> int:
        return sum(max(0, each.end - self._first_kept(each)) for each in self._newest_first)

    def _first_kept(self, generation: _Generation) -> int:
        expired = bisect_right(generation.timestamps, self._expired_us)
        held = bisect_left(generation.offsets, self.fates.held)
        return max(self._first, generation.first + min(expired, held))

    @property
    def window_us(self) -> int:
        """The configured window, microseconds."""
        return self._window_us

    @property
    def names_max(self) -> int:
        """The configured number."""
        return self._names_max

    @property
    def is_full(self) -> bool:
        """Whether too many records are not committed for their names to be kept."""
        newest = self._newest_first[0]
        names = newest.first + len(newest.offsets)
        if names - self._first < UNCOMMITTED_NAMES_MAX:
            return False
        return names - self._number_from(self.fates.uncommitted) >= UNCOMMITTED_NAMES_MAX

    def effective_window_us(self, now: TimestampUs) -> int:
        """Return how far back a repeat that comes next is surely found: less than the window by the count."""
        first = self._newest_first[0].end - self._names_max  # what is before it leaves when that comes
        forgotten_us = self._timestamp_of(first - 1) if first > self._first else self._forgotten_us
        return max(0, min(self._window_us, now - max(self._expired_us, forgotten_us)))

    def resize(self, window_us: int, names_max: int) -> None:
        """Change the window from now on; what is forgotten stays forgotten."""
        assert window_us >= 0, "a window does not reach into the future"
        assert names_max > 0, "use a window of 0 to remember nothing"
        self._window_us = self.fates.window_us = window_us
        self._names_max = names_max
        self._generation_max = min(GENERATION_NAMES, names_max)

    def lookup(self, name: Name) -> Offset | None:
        """Return the offset of the record with that name, None if it is not remembered."""
        generations = self._newest_first
        if self._tags is not None:
            tag = self._tags[hash(name) & _TAGS_MASK]
            if not tag:
                return None
            age = (generations[0].tag - tag) % _TAG_VALUES
            if age:  # a later one has no such name
                if age >= len(generations):
                    return None
                generations = generations[age:]
        for generation in generations:
            position = generation.positions.get(name)
            if position is not None:
                offset = generation.offsets[position]
                is_kept = generation.timestamps[position] > self._expired_us or offset >= self.fates.held
                return Offset(offset) if is_kept and generation.first + position >= self._first else None
        return None

    def remember(self, name: Name, offset: Offset, timestamp: TimestampUs) -> None:
        """Note that the record at ``offset`` has that name; an earlier record with it no longer counts."""
        if not self._window_us:
            return
        newest = self._newest_first[0]
        offsets, positions = newest.offsets, newest.positions
        count = len(offsets)
        is_small = count < GENERATION_NAMES and len(self._newest_first) >= _SMALL_GENERATIONS_MAX
        if count >= self._generation_max and not is_small:
            self._begin_generation()
            self.remember(name, offset, timestamp)
            return
        assert offset > self.fates.newest, "D2: offsets increase"
        self.fates.newest = offset
        position = _POSITIONS[count]
        if positions.setdefault(name, position) is not position:
            del positions[name]  # so that the dictionary is in the order of the positions
            positions[name] = position
        offsets.append(offset)
        newest.timestamps.append(timestamp)
        if self._tags is not None:
            self._tags[hash(name) & _TAGS_MASK] = newest.tag

    def are_new(self, names: Sequence[Name]) -> bool:
        """Return whether surely none of ``names`` is remembered, and no two are the same.

        False may be said of names that are forgotten.
        """
        if not self._window_us:
            return True
        generations = self._newest_first
        newest = generations[0]
        if len(set(names)) < len(names) or not newest.positions.keys().isdisjoint(names):
            return False
        if self._tags is None:
            return True
        tags, tag, live = self._tags, newest.tag, len(generations)
        doubtful = [name for name in names if (tag - tags[hash(name) & _TAGS_MASK]) % _TAG_VALUES < live]
        return not any(self.lookup(name) is not None for name in doubtful)

    def remember_new(self, names: Sequence[Name], base: Offset, timestamp: TimestampUs) -> None:
        """Note that the records from ``base`` on have ``names``, of which `are_new` has just been told."""
        newest = self._newest_first[0]
        count = len(newest.offsets)
        if not self._window_us or count + len(names) > self._generation_max:
            for offset, name in enumerate(names, base):
                self.remember(name, Offset(offset), timestamp)
            return
        assert base > self.fates.newest, f"D2: offset {base} after {self.fates.newest}"
        assert not count or timestamp >= newest.timestamps[-1], f"D2: time {timestamp} is before the last"
        end = Offset(base + len(names))
        self.fates.newest = end - 1
        positions, known = newest.positions, len(newest.positions)
        positions.update(zip(names, _POSITIONS[count : count + len(names)], strict=True))
        assert len(positions) == known + len(names), f"D1: {len(positions) - known} of {len(names)} are new"
        newest.offsets.extend(range(base, end))
        newest.timestamps.extend(repeat(timestamp, len(names)))
        if self._tags is not None:
            tags, tag = self._tags, newest.tag
            for name in names:
                tags[hash(name) & _TAGS_MASK] = tag

    def _begin_generation(self) -> None:
        newest = self._newest_first[0]
        if self._tags is None:
            self._tags = bytearray(_TAGS)
            for name in newest.positions:
                self._tags[hash(name) & _TAGS_MASK] = newest.tag
        self._newest_first.insert(0, _Generation(newest.tag % _TAG_VALUES + 1, newest.end))

    def forget_from(self, log_end_offset: Offset) -> None:
        """Take back all names of records at ``log_end_offset`` and after: these were not stored."""
        self.fates.forget_from(log_end_offset)
        generations = self._newest_first
        age = 0
        generations[0].take_back_from(log_end_offset)
        while not generations[age].offsets and age + 1 < len(generations):
            age += 1
            generations[age].take_back_from(log_end_offset)
        # Those that are empty now stay, as there are names tagged as theirs.
        for generation in generations[:age]:
            generation.first = generations[age].end
        # Names that had left by count may have been taken back, too; those that come now have not left.
        self._first = min(self._first, generations[0].end)

    def expire(self, now: TimestampUs) -> None:
        """Forget what is a window old or older at the log's time ``now``, and what is too much."""
        self._expired_us = max(self._expired_us, now - self._window_us)
        if self.fates.late:
            self.fates.let_go(now)
        generations = self._newest_first
        names = generations[0].first + len(generations[0].offsets)
        first = names - self._names_max
        if first > self._first:
            first = min(
                first, max(self._number_from(self.fates.uncommitted), names - 2 * UNCOMMITTED_NAMES_MAX)
            )
        if first > self._first:
            self._first = first
            self._forgotten_us = self._timestamp_of(first - 1)
        while len(generations) > 1 and self._is_forgotten(generations[-1]):
            generations.pop()

    def fall_back(self, now: TimestampUs) -> None:
        """Let the log's time go on from ``now``: no name counts as newer, and the windows begin there."""
        if self._expired_us > now - self._window_us:
            self._forgotten_us = now  # at most: some of what has expired may be found again
        self._expired_us = min(self._expired_us, now - self._window_us)
        self._forgotten_us = min(self._forgotten_us, now)
        for generation in self._newest_first:
            timestamps = generation.timestamps
            newer = bisect_right(timestamps, now)
            timestamps[newer:] = array("q", [now]) * (len(timestamps) - newer)
        self.fates.fall_back(now)

    def _number_from(self, offset: Offset) -> int:
        """Return how many names came before the first one at ``offset`` or after."""
        for generation in self._newest_first:
            position = bisect_left(generation.offsets, offset)
            if position:
                return generation.first + position
        return self._newest_first[-1].first

    def _timestamp_from(self, offset: Offset) -> int | None:
        """Return the timestamp of the first name at ``offset`` or after."""
        number = self._number_from(offset)
        return self._timestamp_of(number) if number < self._newest_first[0].end else None

    def _timestamp_of(self, number: int) -> int:
        """Return the timestamp of the name before which ``number`` others came, unless that has expired."""
        for generation in self._newest_first:
            if generation.first <= number < generation.end:
                place = number - generation.first
                # Another thread may have taken it back since.
                return next(iter(generation.timestamps[place : place + 1]), _BEFORE_ALL)
        return _BEFORE_ALL

    def _is_forgotten(self, generation: _Generation) -> bool:
        timestamps = generation.timestamps  # none if all its names were taken back
        if not timestamps or generation.end <= self._first:
            return True
        return timestamps[-1] <= self._expired_us and generation.offsets[-1] < self.fates.held


def window_us(window: timedelta) -> int:
    """Return a configured window in microseconds."""
    return window // _MICROSECOND
