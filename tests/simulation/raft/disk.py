"""What one voter's disk holds, by the promises of `metadata.node.storage.port`."""

from collections.abc import Sequence

from envelope.types import LogIndex, Term
from metadata.node.storage.port import INITIAL_HARD_STATE, INITIAL_SNAPSHOT, Stored
from metadata.raft.events import Persist
from metadata.raft.state import Entry, HardState, Snapshot
from tests.simulation.violation import Violation


class LogImage:
    """Hard state, snapshot and the entries behind it; `stored` is what a voter starts from."""

    __slots__ = ("entries", "hard_state", "snapshot")

    def __init__(
        self,
        hard_state: HardState = INITIAL_HARD_STATE,
        snapshot: Snapshot = INITIAL_SNAPSHOT,
        entries: Sequence[Entry] = (),
    ) -> None:
        self.hard_state, self.snapshot, self.entries = hard_state, snapshot, list(entries)

    def copy(self) -> "LogImage":
        """Return another with the same contents."""
        return LogImage(self.hard_state, self.snapshot, self.entries)

    def stored(self) -> Stored:
        """Return everything, as a voter is started with it."""
        return Stored(self.hard_state, self.snapshot, tuple(self.entries))

    @property
    def last_index(self) -> LogIndex:
        """Index of the last entry, the snapshot's if there is none behind it."""
        return LogIndex(self.snapshot.index + len(self.entries))

    def term_at(self, index: int) -> Term | None:
        """Return the term of the entry at ``index`` if it can be told."""
        slot = index - self.snapshot.index - 1
        if slot == -1:
            return self.snapshot.term
        return self.entries[slot].term if 0 <= slot < len(self.entries) else None

    def holds(self, index: int, term: Term) -> bool:
        """Tell whether the committed entry of ``term`` at ``index`` is here, in the log or the snapshot."""
        return index < self.snapshot.index or self.term_at(index) == term

    def write(self, persist: Persist) -> bool:
        """Take in one write; tell whether anything that was there before is not any more.

        Raises:
            Violation: entries that leave a gap, or lie inside the snapshot.
        """
        lost = False
        if persist.hard_state is not None:
            self.hard_state = persist.hard_state
        if persist.snapshot is not None:
            self._replace(persist.snapshot)
            lost = True
        if persist.entries:
            slot = persist.entries[0].index - self.snapshot.index - 1
            if not 0 <= slot <= len(self.entries):
                log = f"{self.snapshot.index} + {len(self.entries)}"
                raise Violation(f"entry {persist.entries[0].index} after a log of {log}")
            lost = lost or slot < len(self.entries)
            self.entries[slot:] = persist.entries
        return lost

    def _replace(self, snapshot: Snapshot) -> None:
        continues = self.term_at(snapshot.index) == snapshot.term
        self.entries = self.entries[snapshot.index - self.snapshot.index :] if continues else []
        self.snapshot = snapshot
