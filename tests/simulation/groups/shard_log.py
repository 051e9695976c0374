"""The log of a shard, as its replicas keep it: who may append, what of that is committed, and when.

Whoever leads appends; a while later that is committed, and a while after that its leader hears of it. Another
leader may be elected at any time, and the former one does not know: whatever it has appended until then is
committed up to a point, which nobody tells it, and lost from there on. What it appends later is lost. While
replicas are lacking nothing more is taken, which is told, and what was taken before waits.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from consumer_groups.shard.events import WriteNumber
from consumer_groups.shard.group_table import GroupTable
from consumer_groups.shard.records import GroupRecord, read_group_record
from envelope.types import Offset, TimestampUs
from tests.simulation.timeline import Timeline

Hear = Callable[[WriteNumber, int | None], None]
"""A leader hears that a write was committed, and when; None: it was refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One write that is committed."""

    reign: int
    at: int
    """Its timestamp: a number of its own."""
    decided_at: int
    """In virtual ns."""
    records: Sequence[GroupRecord]


@dataclass(frozen=True, slots=True)
class _Append:
    reign: int
    number: WriteNumber
    records: Sequence[GroupRecord]
    decided_at: int
    is_refused: bool
    hear: Hear


class ShardLog:
    """What is committed outlives all leaders."""

    def __init__(
        self, timeline: Timeline, rng: Random, write_mean: int, committed: Callable[[Entry], None]
    ) -> None:
        """Let a write take about ``write_mean`` ns; ``committed`` is told of each."""
        self._timeline, self._rng, self._write_mean, self._committed = timeline, rng, write_mean, committed
        self.flapping = 0.0
        """Share of the writes for which replicas are lacking."""
        self.entries: list[Entry] = []
        self.reign = 0
        self.lacks_replicas = False
        self.unsaid = 0
        """Writes that were committed when another reign began."""
        self.upset: Callable[[], None] | None = None
        """What is to happen while the next write is under way."""
        self._appends: deque[_Append] = deque()
        self._free_at = self._told_at = 0

    def elect(self) -> int:
        """Begin another reign, and return it."""
        for append in list(self._appends):
            if self._rng.random() < 0.5:
                break
            if not append.is_refused:
                self._commit(append)
                self.unsaid += 1
        self._appends.clear()
        self.reign += 1
        return self.reign

    def append(self, reign: int, number: WriteNumber, records: Sequence[GroupRecord], hear: Hear) -> None:
        """Take what a leader wants written; if it still leads then, it hears in order what became of that."""
        if reign != self.reign:
            return
        now = self._timeline.now
        is_refused = self.lacks_replicas or self._rng.random() < self.flapping
        self._appends.append(
            _Append(
                reign=reign, number=number, records=records, decided_at=now, is_refused=is_refused, hear=hear
            )
        )
        if self.upset is not None:
            self._timeline.after(self._delay() // 2, self.upset)
            self.upset = None
        self._free_at = max(self._free_at, now + self._delay())
        self._timeline.at(self._free_at, self._settle, reign)

    def _settle(self, reign: int) -> None:
        if reign != self.reign:
            return
        append = self._appends[0]
        if not append.is_refused:
            if self.lacks_replicas:
                self._timeline.after(self._delay(), self._settle, reign)
                return
            self._commit(append)
        self._appends.popleft()
        self._told_at = max(self._told_at, self._timeline.now + self._delay() // 4)
        at = None if append.is_refused else self.entries[-1].at
        self._timeline.at(self._told_at, append.hear, append.number, at)

    def _commit(self, append: _Append) -> None:
        entry = Entry(append.reign, len(self.entries), append.decided_at, append.records)
        self.entries.append(entry)
        self._committed(entry)

    def _delay(self) -> int:
        return int(2 * self._rng.random() * self._write_mean) + 1


def table_of(entries: Sequence[Entry]) -> GroupTable:
    """Return what a leader that begins reads of them."""
    table = GroupTable()
    records = [(record, TimestampUs(entry.at)) for entry in entries for record in entry.records]
    found = (read_group_record(*record, Offset(at), when) for at, (record, when) in enumerate(records))
    table.replay([each for each in found if each is not None], Offset(len(records)))
    return table
