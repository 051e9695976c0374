"""Two entries of one index and term are the same entry, and so is everything before them."""

from envelope.types import LogIndex, Term
from metadata.raft.events import Persist
from tests.simulation.raft.disk import LogImage
from tests.simulation.violation import Violation


class LogMatching:
    """Remembers every entry that any voter wanted written, with the term of the one before it.

    That the entries before are equal too follows, one step at a time.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[LogIndex, Term], tuple[bytes, Term | None]] = {}

    def asked(self, before: LogImage, persist: Persist) -> None:
        """A voter whose log is ``before`` wants ``persist`` written."""
        if not persist.entries:
            return
        previous_index = persist.entries[0].index - 1
        snapshot = persist.snapshot
        previous = (
            snapshot.term
            if snapshot is not None and snapshot.index == previous_index
            else before.term_at(previous_index)
        )
        for entry in persist.entries:
            found = (entry.payload, previous)
            known = self._entries.setdefault((entry.index, entry.term), found)
            if known != found:
                raise Violation(
                    f"entry {entry.index} of term {entry.term} is {found} here, {known} elsewhere "
                    "(payload, term of the entry before)"
                )
            previous = entry.term
