"""How replicas move to other nodes while the stream is in use, or become more or fewer.

A reassignment only adds replicas at first. Those of the target join the ISR as any follower does. Once all of
them are in it and one of them leads, it is finished: the others leave, and owe the removal of their files.
Until then it can be cancelled or given another target.

Read replicas are exchanged at once: nothing depends on how much they hold. A read replica in the target
becomes a replica and keeps its log; the command must drop it from the read replicas, as a node cannot be
both.

Every node that stays in the ISR has all that is committed, so leaving it loses nothing.

Source: KIP-455.
"""

from dataclasses import replace
from typing import assert_never

from envelope.errors import Fenced, InvalidConfig
from metadata.catalog.commands import (
    CancelReassignment,
    FinishReassignment,
    Reassignment,
    ReassignReplicas,
)
from metadata.catalog.events import Events, ReplicasReassigned, refused
from metadata.catalog.holders import (
    HoldersPut,
    put_holders,
    read_replicas_refusal,
    target_refusal,
    with_target,
)
from metadata.catalog.namespaces import beyond_limits, growth
from metadata.catalog.streams import stream_in_life, unknown_stream
from metadata.catalog.tables import Stream, Tables


def reassign(tables: Tables, command: Reassignment) -> Events:
    """Take one step of a reassignment, or refuse it."""
    stream = stream_in_life(tables, command.stream, command.incarnation)
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
    if command.expected_isr_version not in (None, stream.isr_version):
        return _fenced(stream)
    target = command.target
    read_replicas = stream.read_replicas if command.read_replicas is None else command.read_replicas
    after = with_target(stream, target)
    refusal = target_refusal(tables, stream, target) or read_replicas_refusal(
        tables, stream.incarnation, read_replicas, after.replicas
    )
    if refusal is not None:
        return refusal
    if stream.target is None and (target, read_replicas) == (stream.replicas, stream.read_replicas):
        return (ReplicasReassigned(stream, before=stream),)
    config = stream.config.model_copy(update={"read_replicas": len(read_replicas)})
    after = replace(after, config=config, read_replicas=read_replicas)
    beyond = beyond_limits(tables.namespaces, growth(stream, after))
    return beyond or _put(tables, stream, after)


def _finish(tables: Tables, stream: Stream, command: FinishReassignment) -> Events:
    """Make the target the replicas, if all of it is in sync and one of it leads."""
    found = (stream.isr_version, stream.leader_epoch)
    if found != (command.expected_isr_version, command.expected_leader_epoch):
        return _fenced(stream)
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
    """Return whether all of the target is in sync."""
    return stream.target is not None and set(stream.target) <= set(stream.isr_nodes)


def _put(tables: Tables, before: Stream, after: Stream) -> Events:
    put = put_holders(tables, before, after)
    return (ReplicasReassigned(put.stream, before, put.removal),) if isinstance(put, HoldersPut) else put


def _fenced(stream: Stream) -> Events:
    return refused(
        Fenced,
        f"stream {stream.name!r} is at isr_version {stream.isr_version}, leader_epoch {stream.leader_epoch}",
        isr_version=stream.isr_version,
        leader_epoch=stream.leader_epoch,
    )


def _not_reassigned(stream: Stream) -> Events:
    return refused(InvalidConfig, f"stream {stream.name!r} is not being reassigned", field="cancel")
