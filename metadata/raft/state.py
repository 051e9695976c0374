"""The stored state of a Raft voter: term, vote, entries and a snapshot of what came before them."""

from dataclasses import dataclass
from typing import Final, Protocol

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.configuration import CONFIGURATION_ID, Configuration

_NO_TERM: Final = Term(0)


@dataclass(frozen=True, slots=True)
class HardState:
    """The durable term and vote: the newest term that the voter has seen, and its vote in it."""

    term: Term
    vote: NodeId | None
    recovery_term: Term = _NO_TERM
    """The voter has no vote before its log holds an entry of this term or a later one; 0: it has one.

    That of a voter whose disk was lost (`metadata.raft.recovery`).
    """


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the replicated log; ``index`` is 1-based."""

    index: LogIndex
    term: Term
    payload: bytes
    """What is proposed, or a configuration; empty in the entry with which a leader begins its term."""

    @property
    def is_for_the_voters(self) -> bool:
        """Whether it means nothing to the state machine."""
        return not self.payload or self.payload.startswith(CONFIGURATION_ID)


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the replicated log."""

    index: LogIndex
    term: Term
    """Of the entry there."""


BEGINNING: Final = Position(LogIndex(0), _NO_TERM)
"""Before the first entry."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state machine after the entry at ``index``, of ``term``; both 0 before the first entry."""

    index: LogIndex
    term: Term
    payload: bytes
    configuration: Configuration | None = None
    """The one in force after that entry; None: that with which the group began."""


class StoredState(Protocol):
    """The state on a voter's disk when it starts."""

    @property
    def hard_state(self) -> HardState:
        """Term and vote; term 0 and no vote at the first start."""

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot before the entries; of index 0 if there is none."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Behind the snapshot, in order, without a gap."""
