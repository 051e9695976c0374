"""How replicas move to other nodes while the stream is in use.

A reassignment only adds replicas at first. Those of the target join the ISR as any follower does. Once all of
them are in it and one of them leads, it is finished: the others leave, and owe the removal of their files.
Until then it can be cancelled or given another target. Every step is a new version of the ISR, so that
nothing that was proposed about other replicas is applied after it.

A node that comes back to a stream in the reign in which it has left begins another reign, of the same leader:
leaders count what followers say by their reign.

Whoever stays in the ISR has all that is committed, so leaving it loses nothing.

Source: KIP-455.
"""

from dataclasses import replace
from typing import assert_never

from envelope.errors import Fenced, InvalidConfig, RemovalPending, UnknownNode
from envelope.types import LeaderEpoch, NodeId
from metadata.catalog.commands import (
    CancelReassignment,
    FinishReassignment,
    Reassignment,
    ReassignReplicas,
)
from metadata.catalog.events import Events, ReplicasReassigned, refused
from metadata.catalog.nodes import unknown_nodes
from metadata.catalog.streams import living, too_many_removals, unknown_stream
from metadata.catalog.tables import Stream, Tables
from metadata.limits import REPLICAS_MAX


def reassign(tables: Tables, command: Reassignment) -> Events:
    """Take one step of a reassignment, or refuse it."""
    stream = living(tables, command.stream, command.incarnation)
    if stream is None:
        return unknown_stream(command.stream)
    match command:
        case ReassignReplicas():
            return _begin(tables, stream, command)
        case FinishReassignment():
            return _finish(tables, stream, command)
        case CancelReassignment():
            return _cancel(tables, stream)
        case _:
            assert_never(command)


def _begin(tables: Tables, stream: Stream, command: ReassignReplicas) -> Events:
    """Add the replicas of the target; those that only an earlier target had added leave."""
    target, settled = command.target, stream.settled_replicas
    refusal = _target_refusal(tables, stream, target)
    if refusal is not None:
        return refusal
    if stream.target is None and target == settled:
        return (ReplicasReassigned(stream, before=stream),)
    added = tuple(node for node in target if node not in settled)
    after = replace(stream, replicas=settled + added, target=None if target == settled else target)
    if not set(added).isdisjoint(stream.departed):
        # Its log is empty now, and what it has acknowledged of the former one must not count for this one.
        after = replace(after, leader_epoch=LeaderEpoch(stream.leader_epoch + 1), departed=())
    return _put(tables, stream, after)


def _finish(tables: Tables, stream: Stream, command: FinishReassignment) -> Events:
    """Make the target the replicas, if all of it is in sync and one of it leads."""
    found = (stream.isr_version, stream.leader_epoch)
    if found != (command.expected_isr_version, command.expected_leader_epoch):
        return refused(
            Fenced,
            f"stream {stream.name!r} is at isr_version {stream.isr_version}, "
            f"leader_epoch {stream.leader_epoch}",
            isr_version=stream.isr_version,
            leader_epoch=stream.leader_epoch,
        )
    target = stream.target
    if target is None:
        return _not_reassigned(stream)
    if not is_ready(stream) or stream.leader not in target:
        return refused(InvalidConfig, f"target: {target} is not in sync, or does not lead", field="target")
    config = stream.config.model_copy(update={"replicas": len(target)})
    return _put(tables, stream, replace(stream, config=config, replicas=target, target=None))


def _cancel(tables: Tables, stream: Stream) -> Events:
    """Let the replicas go that the reassignment has added."""
    if stream.target is None:
        return _not_reassigned(stream)
    return _put(tables, stream, replace(stream, replicas=stream.settled_replicas, target=None))


def is_ready(stream: Stream) -> bool:
    """Tell whether all of the target is in sync."""
    return stream.target is not None and set(stream.target) <= set(stream.isr_nodes)


def _put(tables: Tables, before: Stream, after: Stream) -> Events:
    """Put other replicas in force: who is none any more leaves the ISR and does not lead."""
    members = {member.node_id: member for member in before.isr}
    isr = tuple(members[node] for node in after.replicas if node in members)
    if not any(map(tables.is_registered, isr)):
        return refused(
            InvalidConfig,
            f"stream {before.name!r} would be left without a replica in sync; in sync are "
            f"{', '.join(before.isr_nodes)}",
            field="replicas",
        )
    left = tuple(node for node in before.replicas if node not in after.replicas)
    if left and not tables.may_owe_removal(before):
        return too_many_removals()
    after = replace(
        after,
        leader=after.leader if after.leader in after.replicas else None,
        isr=isr,
        isr_version=before.isr_version + 1,
        departed=(*after.departed, *left),
    )
    tables.put(after)
    removal = tables.owe_removal(after, left) if left else None
    return (ReplicasReassigned(after, before, removal),)


def _target_refusal(tables: Tables, stream: Stream, target: tuple[NodeId, ...]) -> Events | None:
    if not 1 <= len(target) <= REPLICAS_MAX or len(set(target)) != len(target):
        return refused(
            InvalidConfig, f"replicas: 1 to {REPLICAS_MAX} different nodes are wanted", field="replicas"
        )
    unknown = unknown_nodes(tables, target)
    if unknown:
        return refused(UnknownNode, f"node {unknown[0]!r} is not registered", node_id=unknown[0])
    minimum = stream.config.min_insync_replicas
    if minimum is not None and minimum > len(target):
        return refused(
            InvalidConfig,
            f"replicas: {len(target)} are fewer than min_insync_replicas: {minimum}",
            field="replicas",
        )
    removal = tables.removals.get(stream.incarnation)
    busy = [node for node in target if removal is not None and node in removal.pending]
    if busy:
        return refused(
            RemovalPending,
            f"node {busy[0]!r} has yet to remove its former replica of {stream.name!r}",
            node_id=busy[0],
        )
    return None


def _not_reassigned(stream: Stream) -> Events:
    return refused(InvalidConfig, f"stream {stream.name!r} is not being reassigned", field="cancel")
