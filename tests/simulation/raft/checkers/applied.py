"""All state machines go through the same states; none skips, repeats or goes back; a command counts once."""

from envelope.types import NodeId, Term
from metadata.raft.state import Entry
from tests.simulation.raft.tally import Tally
from tests.simulation.violation import Violation


class Applied:
    """The one applied sequence, and how far each voter's state machine is in it."""

    def __init__(self) -> None:
        self._entries: list[tuple[Term, bytes]] = [(Term(0), b"")]
        self._states: list[tuple[int, int]] = [Tally().state]
        self._effective: set[bytes] = set()
        self._reached: dict[NodeId, int] = {}

    def started(self, name: NodeId, tally: Tally) -> None:
        """A new life begins with the state of its snapshot."""
        self._reached[name] = tally.index
        self._compare_state(name, tally)

    def restored(self, name: NodeId, tally: Tally) -> None:
        """A state machine was replaced by a leader's snapshot."""
        if tally.index <= self._reached[name]:
            raise Violation(f"{name} goes back from {self._reached[name]} to {tally.index}")
        self.started(name, tally)

    def applied(self, name: NodeId, entry: Entry, tally: Tally, command: bytes | None) -> None:
        """An entry was applied; ``command`` is the command in it if it had an effect."""
        if entry.index != self._reached[name] + 1:
            raise Violation(f"{name} applies {entry.index} after {self._reached[name]}")
        self._reached[name] = entry.index
        if entry.index == len(self._entries):
            self._entries.append((entry.term, entry.payload))
            self._states.append(tally.state)
            if command is not None and command in self._effective:
                raise Violation(f"{command!r} has an effect for a second time, at {entry.index}")
            if command is not None:
                self._effective.add(command)
        elif (entry.term, entry.payload) != self._entries[entry.index]:
            raise Violation(
                f"{name} applies {entry.index} of term {entry.term}, {entry.payload!r}; "
                f"applied before: {self._entries[entry.index]}"
            )
        self._compare_state(name, tally)

    def had_effect(self, command: bytes) -> bool:
        """Tell whether ``command`` was applied anywhere."""
        return command in self._effective

    def _compare_state(self, name: NodeId, tally: Tally) -> None:
        if tally.index >= len(self._states):
            raise Violation(f"{name} has a snapshot of {tally.index}, applied are {len(self._states) - 1}")
        if tally.state != self._states[tally.index]:
            raise Violation(
                f"{name} is in state {tally.state} at {tally.index}, others in {self._states[tally.index]}"
            )
