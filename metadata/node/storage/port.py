"""The durable half of consensus: term, vote, log and snapshot behind one port.

`Storage` is the disk of a Raft core, or of a single voter; `metadata.node.storage.file_storage` is
the real one. A call that returned is durable; one that raised is unknown, and after any error but a full disk
the storage refuses all further use, because a failed sync says nothing about what a second one would mean
(Rebello et al., ATC'20).

Invariants, asserted of arguments and checked of bytes that are read:
    S1: entries follow each other without a gap, from the snapshot on.
    S2: terms never decrease along the log, from the snapshot's on, and none exceeds the hard state's.
    S3: the hard state's term never decreases, and a vote in a term is never changed or taken back.

Source: Ongaro and Ousterhout, "In Search of an Understandable Consensus Algorithm", figure 2 and section 7.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from envelope.types import LogIndex, Term
from metadata.node.storage.frames import FrameContents
from metadata.raft.state import Entry, HardState, Snapshot

INITIAL_HARD_STATE: Final = HardState(Term(0), None)
INITIAL_SNAPSHOT: Final = Snapshot(LogIndex(0), Term(0), b"")


@dataclass(frozen=True, slots=True)
class Stored:
    """The stored state of a voter."""

    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[Entry, ...]
    """Behind the snapshot, in order, without a gap."""

    @property
    def last_index(self) -> LogIndex:
        """Index of the last entry, the snapshot's if there is none behind it."""
        return self.entries[-1].index if self.entries else self.snapshot.index

    @property
    def is_blank(self) -> bool:
        """Whether nothing was ever stored: no voter that has sent a promise finds this."""
        return self.hard_state == INITIAL_HARD_STATE and self.last_index == 0


class Storage(Protocol):
    """The durable state of a voter; calls block.

    Arguments that break an invariant are the caller's bug and asserted. Every call may raise `DiskFull`
    (nothing changed, the storage stays usable) and `StorageError` (the outcome is unknown, every later
    call raises).
    """

    def load(self) -> Stored:
        """Return the stored state."""

    def append(self, entries: Sequence[Entry], hard_state: HardState | None = None) -> None:
        """Store entries, replacing all from the first one's index on, and the hard state, in one sync.

        Returns when both are durable; after a crash both are there or neither.
        """

    def compact(self, snapshot: Snapshot) -> None:
        """Store a snapshot instead of all entries up to its index; returns when durable.

        Entries behind it stay if the log holds the snapshot's last entry with the same term; else the
        snapshot is a newer history from elsewhere and replaces the log whole (Raft, section 7).
        """

    @property
    def log_bytes(self) -> int:
        """Bytes that are not the snapshot: what compaction would save, but for a few headers."""

    def close(self) -> None:
        """Release the files; everything was durable before."""


class StoredLog:
    """The image of a storage in memory; all that is added to it was, or is about to be, durable."""

    __slots__ = ("_entries", "hard_state", "snapshot")

    def __init__(self) -> None:
        self.hard_state = INITIAL_HARD_STATE
        self.snapshot = INITIAL_SNAPSHOT
        self._entries: list[Entry] = []

    def stored(self) -> Stored:
        """Return everything."""
        return Stored(self.hard_state, self.snapshot, tuple(self._entries))

    def contradiction(self, added: FrameContents) -> str | None:
        """Return which of S1 to S3 would break if ``added`` came to it, or None."""
        return next(_contradictions(self.hard_state, self.snapshot, self._entries, added), None)

    def add(self, contents: FrameContents) -> None:
        """Add what does not contradict; entries replace all from the first one's index on."""
        if contents.hard_state is not None:
            self.hard_state = contents.hard_state
        if contents.snapshot is not None:
            self.snapshot, self._entries = contents.snapshot, []
        if contents.entries:
            kept = contents.entries[0].index - self.snapshot.index - 1
            self._entries[kept:] = contents.entries

    def behind(self, snapshot: Snapshot) -> tuple[Entry, ...]:
        """Return the entries that stay behind ``snapshot``: none if it is of another history."""
        if self._term_at(snapshot.index) != snapshot.term:
            return ()
        return tuple(entry for entry in self._entries if entry.index > snapshot.index)

    def _term_at(self, index: LogIndex) -> Term | None:
        if index == self.snapshot.index:
            return self.snapshot.term
        slot = index - self.snapshot.index - 1
        return self._entries[slot].term if 0 <= slot < len(self._entries) else None


def _contradictions(
    before: HardState, snapshot: Snapshot, log: Sequence[Entry], added: FrameContents
) -> Iterator[str]:
    after = added.hard_state or before
    if after.term < before.term:
        yield f"S3: term {after.term} after {before.term}"
    if after.term == before.term and before.vote not in (None, after.vote):
        yield f"S3: vote for {after.vote} after {before.vote} in term {after.term}"
    if added.snapshot is not None:
        snapshot, log = added.snapshot, ()
    if snapshot.term > after.term:
        yield f"S2: snapshot of term {snapshot.term} in term {after.term}"
    yield from _entry_contradictions(snapshot, log, added.entries)
    if added.entries and added.entries[-1].term > after.term:
        yield f"S2: entry of term {added.entries[-1].term} in term {after.term}"


def _entry_contradictions(
    snapshot: Snapshot, log: Sequence[Entry], entries: Sequence[Entry]
) -> Iterator[str]:
    if not entries:
        return
    kept = entries[0].index - snapshot.index - 1
    if not 0 <= kept <= len(log):
        yield f"S1: entry {entries[0].index} after a log of {snapshot.index} + {len(log)}"
        return
    index, term = (log[kept - 1].index, log[kept - 1].term) if kept else (snapshot.index, snapshot.term)
    for entry in entries:
        if entry.index != index + 1:
            yield f"S1: entry {entry.index} after {index}"
        if entry.term < term:
            yield f"S2: entry {entry.index} of term {entry.term} after term {term}"
        index, term = entry.index, entry.term
