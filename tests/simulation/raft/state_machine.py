"""What the voters of a simulation agree on, as far as the simulator and its checkers know it."""

from typing import Protocol

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.state import Entry, Snapshot

State = tuple[object, ...]
"""Equal in two machines that are in the same state."""


class StateMachine(Protocol):
    """One voter's, in one life."""

    @property
    def index(self) -> LogIndex:
        """The last entry that was applied."""

    @property
    def count(self) -> int:
        """How many commands had an effect; what clients are answered with."""

    @property
    def state(self) -> State:
        """What two equal ones have in common."""

    def apply(self, entry: Entry) -> bytes | None:
        """Apply the next entry; return its command, or the name of it, if it had an effect."""

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot holds."""

    def encode(self) -> bytes:
        """Return the payload of a snapshot."""

    def leader_changed(self, leader: NodeId | None, term: Term) -> None:
        """Learn who leads."""
