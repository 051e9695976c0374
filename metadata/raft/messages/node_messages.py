"""Messages between nodes and the metadata leader: leases and reports about nodes that are alive.

None of it is Raft's; it goes over the connections of voters and observers, and may be lost as their messages
may. A message is repeated until it has had its effect.
"""

from dataclasses import dataclass

from envelope.types import LogIndex, MonotonicNs, NodeEpoch, NodeId


@dataclass(frozen=True, slots=True)
class LeaseAsked:
    """To the metadata leader: the node is alive and asks for a lease."""

    source: NodeId
    target: NodeId
    node_epoch: NodeEpoch
    asked_at: MonotonicNs
    """By the clock of the node that asks; the answer repeats it."""


@dataclass(frozen=True, slots=True)
class LeaseGranted:
    """To a node: it may act as a leader for ``lease_ns`` from ``asked_at``, by its own clock."""

    source: NodeId
    target: NodeId
    node_epoch: NodeEpoch
    asked_at: MonotonicNs
    lease_ns: int
    index: LogIndex
    """A catalogue that is applied so far knows everything that was decided before ``asked_at``."""


@dataclass(frozen=True, slots=True)
class LeaseRefused:
    """To a node: a newer start of it has registered, the process that asked is to stop."""

    source: NodeId
    target: NodeId
    node_epoch: NodeEpoch
    """The registered one."""


@dataclass(frozen=True, slots=True)
class NodeUnheardReport:
    """To the metadata leader: ``source`` does not hear ``node``."""

    source: NodeId
    target: NodeId
    node: NodeId


@dataclass(frozen=True, slots=True)
class StopAnnounced:
    """To the metadata leader: the node is about to stop and wants others to lead its streams."""

    source: NodeId
    target: NodeId
    node_epoch: NodeEpoch


NodeMessage = LeaseAsked | LeaseGranted | LeaseRefused | NodeUnheardReport | StopAnnounced
