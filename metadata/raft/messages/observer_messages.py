"""Messages between observers and voters of the metadata group.

An observer keeps up with the log and has no vote (`metadata.raft.observer`). It asks for what follows the
entry that it applied last, and is answered once, as soon as there is something; then it asks again. So a
voter keeps one number for each observer, and a slow one costs it nothing.
"""

from dataclasses import dataclass

from envelope.types import LogIndex, NodeId, Term
from metadata.raft.state import Entry, Snapshot


@dataclass(frozen=True, slots=True)
class Observe:
    """To a voter: answer with what follows ``after``; the question takes the place of an earlier one."""

    source: NodeId
    target: NodeId
    after: LogIndex


@dataclass(frozen=True, slots=True)
class CommittedEntries:
    """To an observer: entries that are committed, durable and applied where this comes from."""

    source: NodeId
    target: NodeId
    previous_index: LogIndex
    """Of the entry before them, the one that was asked with."""
    previous_term: Term
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class CommittedState:
    """To an observer: the state machine, as the log does not reach back to the entry in question."""

    source: NodeId
    target: NodeId
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class VoterStatus:
    """To an observer: the voter is alive; its term, and the leader that it knows."""

    source: NodeId
    target: NodeId
    term: Term
    node: NodeId
    """The leader of ``term``; empty if none is known."""


ObserverAnswer = CommittedEntries | CommittedState
ObserverMessage = Observe | ObserverAnswer | VoterStatus
