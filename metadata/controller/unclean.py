"""Elections of leaders that are not in sync: by the stream's configuration, or by an operator's order.

Both need all of the ISR to be dead: the lease of each has run out, or its node has come back with another
disk, or without the stream's log. The nodes that are left lack what only the ISR had.

By itself only a replica is elected that has once been in sync with the directory that it has now. A read
replica, or one that may hold nothing, must be named by the operator.

Source: KIP-966.
"""

from envelope.errors import NotReplica, StreamHasLeader, UnavailableError
from envelope.types import MonotonicNs, NodeId
from metadata.catalog.commands import ChangeLeader
from metadata.catalog.events import CommandRefused
from metadata.catalog.tables import Stream
from metadata.controller.alive_nodes import AliveNodes


def last_choice(row: Stream, alive_nodes: AliveNodes, now: MonotonicNs) -> NodeId | None:
    """Return the leader to be of a stream without a living ISR; None if there is none, or the ISR lives."""
    if not row.config.unclean_election or not alive_nodes.is_isr_dead(row, now):
        return None
    passed_over = {*row.blank, *row.isr_nodes}  # a member that is alive has lost its log
    return next(
        (node for node in row.replicas if node not in passed_over and alive_nodes.is_eligible(node, now)),
        None,
    )


def ordered_election(
    row: Stream, node: NodeId, alive_nodes: AliveNodes, now: MonotonicNs
) -> ChangeLeader | CommandRefused:
    """Return the command that makes ``node`` lead an offline stream, whatever it holds; or why not."""
    if node not in row.holders:
        return CommandRefused(
            NotReplica, f"node {node!r} has no replica of {row.name!r}; {', '.join(row.holders)} have one"
        )
    present = row.leader
    if present is not None and alive_nodes.is_alive(present, now):
        return CommandRefused(StreamHasLeader, f"{present!r} leads {row.name!r}", (("leader", present),))
    well = [
        one for one in row.isr if alive_nodes.has_log(row, one) and alive_nodes.is_alive(one.node_id, now)
    ]
    if well:
        name = well[0].node_id
        reason = f"{name!r} is in sync and alive: it is elected by itself, and nothing is lost"
        return CommandRefused(StreamHasLeader, reason, (("leader", name),))
    # A leader that was not heard in this term may still lead.
    if not alive_nodes.is_isr_dead(row, now):
        return CommandRefused(UnavailableError, "the lease of who was in sync has not run out yet")
    if not alive_nodes.is_eligible(node, now):
        return CommandRefused(UnavailableError, f"node {node!r} is not alive, or about to stop")
    return ChangeLeader(
        stream=row.name,
        incarnation=row.incarnation,
        leader=node,
        node_epoch=alive_nodes.registered_epoch(node),
        expected_leader_epoch=row.leader_epoch,
        unclean=True,
    )
