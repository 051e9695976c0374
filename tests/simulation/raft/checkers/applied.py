"""All state machines go through the same states; none skips, repeats or goes back; a command counts once."""

from envelope.types import NodeId, Term
from metadata.raft.state import Entry
from tests.simulation.raft.state_machine import State, StateMachine
from tests.simulation.violation import Violation


class Applied:
    """The one applied sequence, and how far each voter's state machine is in it."""

    def __init__(self, beginning: State) -> None:
        """Begin with the state before the first entry."""
        self._entries: list[tuple[Term, bytes]] = [(Term(0), b"")]
        self._states = [beginning]
        self._effective: set[bytes] = set()
        self._reached: dict[NodeId, int] = {}

    def started(self, name: NodeId, machine: StateMachine) -> None:
        """A new life begins with the state of its snapshot."""
        self._reached[name] = machine.index
        self._compare_state(name, machine)

    def restored(self, name: NodeId, machine: StateMachine) -> None:
        """A state machine was replaced by a leader's snapshot."""
        if machine.index <= self._reached[name]:
            raise Violation(f"{name} goes back from {self._reached[name]} to {machine.index}")
        self.started(name, machine)

    def applied(self, name: NodeId, entry: Entry, machine: StateMachine, command: bytes | None) -> None:
        """An entry was applied; ``command`` is the command in it if it had an effect."""
        if entry.index != self._reached[name] + 1:
            raise Violation(f"{name} applies {entry.index} after {self._reached[name]}")
        self._reached[name] = entry.index
        if entry.index == len(self._entries):
            self._entries.append((entry.term, entry.payload))
            self._states.append(machine.state)
            if command is not None and command in self._effective:
                raise Violation(f"{command!r} has an effect for a second time, at {entry.index}")
            if command is not None:
                self._effective.add(command)
        elif (entry.term, entry.payload) != self._entries[entry.index]:
            raise Violation(
                f"{name} applies {entry.index} of term {entry.term}, {entry.payload!r}; "
                f"applied before: {self._entries[entry.index]}"
            )
        self._compare_state(name, machine)

    def had_effect(self, command: bytes) -> bool:
        """Tell whether ``command`` was applied anywhere."""
        return command in self._effective

    def _compare_state(self, name: NodeId, machine: StateMachine) -> None:
        if machine.index >= len(self._states):
            raise Violation(f"{name} has a snapshot of {machine.index}, applied are {len(self._states) - 1}")
        if machine.state != self._states[machine.index]:
            others = self._states[machine.index]
            raise Violation(f"{name} is in state {machine.state} at {machine.index}, others in {others}")
