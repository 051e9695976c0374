"""The replicated log of one voter: a snapshot, the entries behind it, and how far they are committed.

Pure list work; how much of it is durable is recorded in `metadata.raft.output`.

Source: Ongaro and Ousterhout, sections 5.3 (merging), 5.4.1 (which log is newer) and 7 (snapshots).
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from envelope.types import LogIndex, Term
from metadata.raft.configuration import Configuration, ConfigurationsByIndex, configuration_in
from metadata.raft.state import Entry, Snapshot

ENTRY_OVERHEAD_BYTES: Final = 32
"""What an entry counts for in a message beside its payload: index, term and length, rounded up."""

_NOBODY: Final = Configuration(())


class RaftLog:
    """See the module.

    Invariants:
        R3: snapshot.index <= commit <= last_index, and the commit index never goes back.
        R4: entries follow each other without a gap, and their terms never decrease.
        R5: nothing that is committed is truncated or replaced, except by a snapshot of the same history.
        R15: the configuration in force is the last one in the log, or that of the snapshot.
            Held by test_a_configuration_that_is_replaced_is_not_in_force,
            test_those_from_the_committed_one_on_are_possible.
    """

    __slots__ = ("_commit", "_entries", "_snapshot", "beginning", "configurations")

    def __init__(
        self, snapshot: Snapshot, entries: Sequence[Entry], beginning: Configuration = _NOBODY
    ) -> None:
        """Begin with the stored log; the snapshot was committed, of the entries that is not known.

        ``beginning`` is in force before the log has named another.
        """
        self.beginning = beginning
        self._snapshot = snapshot
        self.configurations = ConfigurationsByIndex(snapshot.index, snapshot.configuration)
        self._commit = snapshot.index
        self._entries: list[Entry] = []
        self.append(entries)

    def __str__(self) -> str:
        return f"snapshot={self._snapshot.index} commit={self._commit} last={self.last_index}"

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot before the entries; of index 0 if there is none."""
        return self._snapshot

    @property
    def commit(self) -> LogIndex:
        """The last entry that is known to be committed."""
        return self._commit

    @property
    def last_index(self) -> LogIndex:
        """Index of the last entry, of the snapshot if there is none behind it."""
        return LogIndex(self._snapshot.index + len(self._entries))

    @property
    def last_term(self) -> Term:
        """Term of the last entry, of the snapshot if there is none behind it."""
        return self._entries[-1].term if self._entries else self._snapshot.term

    @property
    def configuration(self) -> Configuration:
        """The one in force."""
        return self.configurations.at(self.last_index) or self.beginning

    @property
    def possible_configurations(self) -> tuple[Configuration, ...]:
        """Those that others may decide by: the last one that is known to be committed, and all behind it."""
        return tuple(each or self.beginning for each in self.configurations.since(self._commit))

    def term_at(self, index: LogIndex) -> Term | None:
        """Return the term of an entry; None behind the end, and before the snapshot."""
        if index == self._snapshot.index:
            return self._snapshot.term
        slot = self._slot(index)
        return self._entries[slot].term if 0 <= slot < len(self._entries) else None

    def is_no_newer_than(self, last_index: LogIndex, last_term: Term) -> bool:
        """Return whether a log that ends so is "at least as up-to-date" as this one (section 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_agreement(self, index: LogIndex, term: Term) -> LogIndex:
        """Return the largest index <= ``index`` whose entry here may equal one of ``term`` or before.

        Terms never decrease along a log, so nothing above it is in a log that has ``term`` at ``index``. Both
        sides of a rejected append ask this in turn, and skip all entries of a term in one step instead of one
        each. Where the entries are no longer there, any index may be the one.
        """
        index = min(index, self.last_index)
        if index < self._snapshot.index:
            return index
        kept = bisect_right(self._entries, term, hi=self._slot(index) + 1, key=lambda entry: entry.term)
        if kept == 0 and self._snapshot.term > term:
            return LogIndex(self._snapshot.index - 1)
        return LogIndex(self._snapshot.index + kept)

    def between(self, start: LogIndex, last: LogIndex) -> tuple[Entry, ...]:
        """Return the entries from ``start`` to ``last``, both included; ``start`` is behind the snapshot."""
        assert start > self._snapshot.index, f"entry {start} is in the snapshot of {self._snapshot.index}"
        return tuple(self._entries[self._slot(start) : self._slot(last) + 1])

    def within_bytes(self, start: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries from ``start`` on that fit in ``bytes_max``; at least one, if there is one."""
        size, end = 0, self._slot(start)
        assert end >= 0, f"entry {start} is in the snapshot of {self._snapshot.index}"
        for entry in self._entries[end:]:
            size += len(entry.payload) + ENTRY_OVERHEAD_BYTES
            if size > bytes_max and end > self._slot(start):
                break
            end += 1
        return tuple(self._entries[self._slot(start) : end])

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries that follow the last one."""
        for entry in entries:
            assert entry.index == self.last_index + 1, f"R4: entry {entry.index} after {self.last_index}"
            assert entry.term >= self.last_term, f"R4: term {entry.term} after {self.last_term}"
            self._entries.append(entry)
            configuration = configuration_in(entry.payload)
            if configuration is not None:
                self.configurations.append(entry.index, configuration)

    def merge(self, entries: Sequence[Entry]) -> LogIndex | None:
        """Merge a leader's entries, which follow an entry of this log.

        Only an entry of another term is replaced, and all behind it with it: a delayed message must not
        truncate what later ones have brought.

        Returns:
            The first index that is new or changed, None if nothing is.
        """
        for place, entry in enumerate(entries):
            if self.term_at(entry.index) != entry.term:
                self._truncate_from(entry.index)
                self.append(entries[place:])
                return entry.index
        return None

    def commit_to(self, index: LogIndex) -> None:
        """Record that everything up to ``index`` is committed; an earlier index changes nothing."""
        assert index <= self.last_index, (
            f"R3: {index} is committed and the log ends at {self.last_index}: was what it held lost?"
        )
        self._commit = max(self._commit, index)

    def compact(self, snapshot: Snapshot) -> None:
        """Replace the entries up to the snapshot's, which are committed, by it."""
        assert snapshot.index <= self._commit, f"R3: snapshot {snapshot.index} above commit {self._commit}"
        assert self.term_at(snapshot.index) == snapshot.term, (
            f"R5: snapshot {snapshot.index} of another history"
        )
        del self._entries[: self._slot(snapshot.index) + 1]
        self.configurations.compact(snapshot.index)
        self._snapshot = snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Replace everything by a snapshot of what others have committed."""
        assert snapshot.index > self._commit, f"R5: snapshot {snapshot.index} below commit {self._commit}"
        assert snapshot.term >= self._snapshot.term, f"R4: snapshot of term {snapshot.term}"
        self._snapshot, self._entries = snapshot, []
        self.configurations = ConfigurationsByIndex(snapshot.index, snapshot.configuration)
        self._commit = snapshot.index

    def _truncate_from(self, index: LogIndex) -> None:
        assert index > self._commit, f"R5: entry {index} is committed, up to {self._commit}"
        del self._entries[self._slot(index) :]
        self.configurations.truncate_from(index)

    def _slot(self, index: LogIndex) -> int:
        """Place of an entry in the list; -1 for the snapshot's."""
        return index - self._snapshot.index - 1
