"""How nodes come and come back, and what all of them can."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from envelope.errors import (
    ForeignReplica,
    InvalidConfig,
    InvalidName,
    LimitReached,
    NodeInUse,
    NodesTooOld,
    UnknownNode,
)
from envelope.types import Incarnation, NodeEpoch, NodeId, SyncMode
from metadata.catalog.commands import ForgetNode, RegisterNode, SetFeatureLevel
from metadata.catalog.events import (
    ClusterChanged,
    Event,
    Events,
    IsrChanged,
    LeaderChanged,
    NodeForgotten,
    NodeRegistered,
    refused,
    refused_by,
)
from metadata.catalog.tables import InSyncReplica, RegisteredNode, Stream, Tables
from metadata.features import refuse_newer, too_old
from metadata.limits import NODES_MAX

_NODE_ID: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_TEXT_CHARS_MAX: Final = 255


def register_node(tables: Tables, command: RegisterNode) -> Events:
    """Give the node its next node_epoch, end its reigns, and void what it lost."""
    refusal = _refusal(tables, command)
    if refusal is not None:
        return refusal
    known = tables.nodes.get(command.node_id)
    node = RegisteredNode(
        node_id=command.node_id,
        node_epoch=NodeEpoch((known.node_epoch if known else tables.forgotten_epoch) + 1),
        directory=command.directory,
        host=command.host,
        port=command.port,
        http_port=command.http_port,
        version=command.version,
        peer_host=command.peer_host,
        peer_port=command.peer_port,
        rack=command.rack,
    )
    if not tables.nodes:
        _begin_at(tables, command.feature_level or 0)
    tables.nodes[node.node_id] = node
    events: list[Event] = [NodeRegistered(node)]
    is_exchanged = known is not None and known.directory != node.directory
    lost, restored = set(command.lost), set(command.restored)
    for stream in tuple(tables.streams.values()):
        if node.node_id in stream.holders:
            is_lost = stream.begun and stream.incarnation in lost
            is_kept = not is_lost and (node.node_id not in stream.blank or stream.incarnation in restored)
            row = _with_what_is_there(tables, stream, node, is_kept=is_kept, is_lost=is_lost or is_exchanged)
            events.extend(_start_anew(tables, row, node, unsynced_kept=command.unsynced_kept))
    return tuple(events)


def _with_what_is_there(
    tables: Tables, stream: Stream, node: RegisteredNode, *, is_kept: bool, is_lost: bool
) -> Stream:
    """Record whether a replica is blank: without the log that was in sync with this directory."""
    is_there = is_kept and InSyncReplica(node.node_id, node.directory) in stream.isr
    was_blank = node.node_id in stream.blank
    may_hold_nothing = not is_there and (was_blank or is_lost)
    is_blank = node.node_id in stream.replicas and may_hold_nothing
    if is_blank == was_blank:
        return stream
    others = tuple(name for name in stream.blank if name != node.node_id)
    row = replace(stream, blank=(*others, node.node_id) if is_blank else others)
    tables.put(row)
    return row


def lost_replicas(
    streams: Iterable[Stream], node_id: NodeId, held: frozenset[Incarnation]
) -> tuple[Incarnation, ...]:
    """Return what a node that has the logs of ``held`` must name as lost when it registers.

    In a stream that has not begun nobody has anything to lose.
    """
    return tuple(
        row.incarnation
        for row in streams
        if row.begun and node_id in row.replicas and row.incarnation not in held
    )


def restored_replicas(
    streams: Iterable[Stream], member: InSyncReplica, held: frozenset[Incarnation]
) -> tuple[Incarnation, ...]:
    """Return what a node that has the logs of ``held`` must name as restored when it registers."""
    return tuple(
        row.incarnation
        for row in streams
        if member.node_id in row.blank and member in row.isr and row.incarnation in held
    )


def _refusal(tables: Tables, command: RegisterNode) -> Events | None:
    if not _NODE_ID.fullmatch(command.node_id):
        return refused(InvalidName, f"node id {command.node_id!r}: use letters, digits, '_', '.', '-'")
    refusal = _malformed(command)
    if refusal is not None:
        return refusal
    error = too_old(command.feature_level or 0, tables.cluster.feature_level)
    if error is not None:
        return refused_by(error)
    if command.node_id not in tables.nodes and len(tables.nodes) >= NODES_MAX:
        return refused(LimitReached, f"the cluster has {NODES_MAX} nodes, its limit", limit=NODES_MAX)
    for other in tables.nodes.values():
        if other.directory == command.directory and other.node_id != command.node_id:
            return refused(
                ForeignReplica,
                f"directory {command.directory} belongs to node {other.node_id}, not {command.node_id}",
                node_id=other.node_id,
            )
    return None


def _malformed(command: RegisterNode) -> Events | None:
    texts = {
        "directory": command.directory,
        "host": command.host,
        "peer_host": command.peer_host,
        "rack": command.rack,
    }
    for name, text in texts.items():
        if text is not None and not 1 <= len(text) <= _TEXT_CHARS_MAX:
            return refused(InvalidConfig, f"{name}: must have 1 to {_TEXT_CHARS_MAX} characters", field=name)
    for name, port in (("port", command.port), ("peer_port", command.peer_port)):
        if port is not None and not 0 < port < 1 << 16:
            return refused(InvalidConfig, f"{name}: {port} is not between 1 and 65535", field=name)
    if (command.peer_host is None) != (command.peer_port is None):
        return refused(InvalidConfig, "peer_host and peer_port belong together", field="peer_port")
    return None


def _start_anew(tables: Tables, stream: Stream, node: RegisteredNode, *, unsynced_kept: bool) -> Events:
    """Apply a node's new start to one stream.

    Its reign ends, because a process never leads under an epoch granted to an earlier start. A member of the
    ISR that came back with another directory, or without the stream's log, lost what it held, and leaves;
    unless it is the last: then the stream stays without a leader until what was lost is back. A member that
    may have lost what it counted as stored without a sync leaves too, unless nobody has more (KIP-966).

    From now on it counts only synced records, with ``sync: always``.
    """
    events: list[Event] = []
    after = stream
    if after.leader == node.node_id:
        after = replace(after, leader=None)
        events.append(LeaderChanged(after))
    synced = stream.config.sync is SyncMode.ALWAYS and node.node_id not in stream.unsynced
    keeps_all = (unsynced_kept or synced) and node.node_id not in stream.blank
    lost = next((member for member in after.isr if _is_lost(member, node, keeps_all=keeps_all)), None)
    if lost is not None and len(after.isr) > 1:
        remaining = tuple(member for member in after.isr if member != lost)
        after = replace(after, isr=remaining, isr_version=after.isr_version + 1)
        events.append(IsrChanged(after))
    if node.node_id in after.unsynced:
        after = replace(after, unsynced=tuple(name for name in after.unsynced if name != node.node_id))
    tables.put(after)
    return tuple(events)


def _is_lost(member: InSyncReplica, node: RegisteredNode, *, keeps_all: bool) -> bool:
    return member.node_id == node.node_id and not (keeps_all and member.directory == node.directory)


def forget_node(tables: Tables, command: ForgetNode) -> Events:
    """Drop a node without replicas, and the removals that it owed; its node_epochs are not given again."""
    node = tables.nodes.get(command.node_id)
    if node is None:
        return refused(UnknownNode, f"node {command.node_id!r} is not registered", node_id=command.node_id)
    held = sum(node.node_id in stream.holders for stream in tables.streams.values())
    if held:
        return refused(
            NodeInUse,
            f"node {node.node_id!r} has replicas of {held} streams: drain it first",
            node_id=node.node_id,
            replicas=held,
        )
    for removal in tuple(tables.removals.values()):
        tables.strike_off(removal, node.node_id)
    tables.forgotten_epoch = max(tables.forgotten_epoch, node.node_epoch)
    del tables.nodes[node.node_id]
    return (NodeForgotten(node),)


def set_feature_level(tables: Tables, command: SetFeatureLevel) -> Events:
    """Raise the cluster's feature level, which `level_refusal` does not object to.

    Raises:
        UnsupportedFeatureLevel: the cluster is at a level from now on that this node cannot.
    """
    _begin_at(tables, command.level)
    return (ClusterChanged(tables.cluster),)


def level_refusal(
    nodes: Iterable[RegisteredNode], present: int, command: SetFeatureLevel
) -> NodesTooOld | InvalidConfig | None:
    """Return why the feature level is not raised, None if it is.

    Args:
        nodes: all that are registered.
        present: the cluster's level.
        command: the level to be, and what the nodes have said.
    """
    level = command.level
    if level < max(present, 1):  # at level 0 nobody could read that it is to be 0
        text = f"feature_level: the cluster is at {present}, and cannot be raised to {level}"
        return InvalidConfig(text, field="feature_level")
    known = {(node.node_id, node.node_epoch): node.feature_level for node in command.nodes}
    found = {node.node_id: known.get((node.node_id, node.node_epoch)) for node in nodes}
    lacking = {node_id: can for node_id, can in sorted(found.items()) if can is None or can < level}
    if level == present or (found and not lacking):
        return None
    reasons = (
        f"node {node_id} has not said what it can" if can is None else f"node {node_id} can {can}"
        for node_id, can in lacking.items()
    )
    text = f"feature_level: {level} is wanted of every node; {', '.join(reasons) or 'none is registered'}"
    return NodesTooOld(text, feature_level=present, nodes=",".join(lacking))


def _begin_at(tables: Tables, level: int) -> None:
    refuse_newer(level)
    tables.cluster = replace(tables.cluster, feature_level=level)


def unknown_nodes(tables: Tables, node_ids: tuple[NodeId, ...]) -> list[NodeId]:
    """Return those of ``node_ids`` that never registered."""
    return [node_id for node_id in node_ids if node_id not in tables.nodes]
