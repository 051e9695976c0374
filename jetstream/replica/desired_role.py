"""The next step of a node for one of its replicas when the catalogue changes.

The catalogue says who leads under which epoch; the node is somewhere on its way there, as logs are opened and
closed and epochs begin on a disk. The way there is taken step by step, whatever the catalogue says meanwhile.
"""

from dataclasses import dataclass

from envelope.types import LeaderEpoch, NodeId
from metadata.catalog.tables import Stream
from metadata.stream_config import StreamConfig


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """The present state of a replica."""

    is_open: bool
    """Its log is open, or has been found not to open: then there is nothing to be done but to end, or to wait
    for space."""
    config: StreamConfig
    """In force here."""
    leads: bool
    leader: NodeId | None
    """Whom it follows, if it does not lead."""
    leader_epoch: LeaderEpoch
    """The reign in which it leads or follows."""
    declined_epoch: LeaderEpoch
    """The last reign that was given to this node and that it could not begin."""
    is_damaged: bool
    """Its log cannot be appended to as it is."""
    is_refused: bool = False
    """It was found that its log is lost, and that nothing is to be begun."""
    awaits_retry: bool = False
    """What comes next waits for space on its disk: it is tried again a while later."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open the log."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Serve nothing and begin nothing: the log is gone, and nobody else has for certain what it held."""


@dataclass(frozen=True, slots=True)
class End:
    """Stop everything and close the log: the stream is gone, or has its replicas elsewhere."""


@dataclass(frozen=True, slots=True)
class Repair:
    """Remove the damaged log and copy the leader's: nobody counts on this one any more."""


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Put a changed configuration in force."""

    config: StreamConfig


@dataclass(frozen=True, slots=True)
class Resign:
    """Stop to lead: another reign has begun, or this one has ended."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Say that this node, which leads a stream that is new, has a log of it."""

    row: Stream


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Begin the reign that the row gives to this node, once nothing is being written any more."""

    row: Stream


@dataclass(frozen=True, slots=True)
class Follow:
    """Follow this leader, or wait for one."""

    leader: NodeId | None
    leader_epoch: LeaderEpoch


Step = Open | Refuse | End | Repair | Reconfigure | Resign | Begin | TakeOver | Follow


def next_step(standing: RoleStatus, row: Stream | None, node_id: NodeId) -> Step | None:
    """Return what leads from ``standing`` towards ``row``, None if nothing is to be done.

    The node must have registered its present start before any row that names it as a leader: a reign that was
    given to an earlier start is ended by the registration.

    Args:
        standing: what the replica does now.
        row: what the catalogue says; None if this life of the stream is over.
        node_id: whose replica it is.
    """
    if row is None or node_id not in row.holders:
        return End()
    if not standing.is_open:
        if row.is_lost_by(node_id):
            return None if standing.is_refused else Refuse()
        return Open()
    if row.config != standing.config:
        return Reconfigure(row.config)
    others_lead = row.leader is not None and row.leader != node_id
    if standing.is_damaged and others_lead and node_id not in row.isr_nodes and not standing.leads:
        return Repair()
    return _next_reign(standing, row, node_id)


def may_lead_soon(leader_epoch: LeaderEpoch, row: Stream | None, node_id: NodeId) -> bool:
    """Return whether a node that does not lead yet may be about to, in the reign that a follower asks about.

    The follower's catalogue may be ahead of this one, in which ``row`` is.
    """
    if row is None or leader_epoch > row.leader_epoch:
        return True
    return (row.leader, row.leader_epoch) == (node_id, leader_epoch)


def _next_reign(standing: RoleStatus, row: Stream, node_id: NodeId) -> Step | None:
    is_mine = row.leader == node_id
    if standing.leads:
        is_same = is_mine and row.leader_epoch == standing.leader_epoch
        return None if is_same else Resign()
    if is_mine:
        if standing.awaits_retry or row.leader_epoch <= standing.declined_epoch:
            return None
        return TakeOver(row) if row.begun else Begin(row)
    is_followed = (standing.leader, standing.leader_epoch) == (row.leader, row.leader_epoch)
    return None if is_followed else Follow(row.leader, row.leader_epoch)
