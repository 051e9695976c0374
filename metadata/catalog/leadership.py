"""Leaders and ISRs: compare-and-set commands, and the elections that are due.

An election is clean unless it is expressly not: the leader comes from the ISR, with the directory that was in
it.
"""

from dataclasses import replace

from envelope.errors import Fenced, InvalidConfig
from envelope.types import LeaderEpoch, NodeEpoch, NodeId
from metadata.catalog.commands import (
    AdvanceTier,
    BeginStream,
    ChangeIsr,
    ChangeLeader,
    NodeAtEpoch,
    SetTxid,
)
from metadata.catalog.events import (
    Events,
    IsrChanged,
    LeaderChanged,
    StreamUpdated,
    UncleanlyElected,
    refused,
)
from metadata.catalog.streams import stream_in_life, unknown_stream
from metadata.catalog.tables import InSyncReplica, Stream, Tables, UncleanElection


def change_leader(tables: Tables, command: ChangeLeader) -> Events:
    """Begin the next reign if nobody has since, and the leader to be is the process that was meant."""
    stream = stream_in_life(tables, command.stream, command.incarnation)
    if stream is None:
        return unknown_stream(command.stream)
    if stream.leader_epoch != command.expected_leader_epoch:
        return refused(
            Fenced,
            f"stream {stream.name!r} is at leader_epoch {stream.leader_epoch}, "
            f"not {command.expected_leader_epoch}",
            leader_epoch=stream.leader_epoch,
        )
    refusal = _stale_node(tables, command.leader, command.node_epoch)
    if refusal is not None:
        return refusal
    member = next((member for member in stream.isr if member.node_id == command.leader), None)
    elected = replace(
        stream, leader=command.leader, leader_epoch=LeaderEpoch(stream.leader_epoch + 1), departed=()
    )
    if member is not None and tables.has_log(stream, member):
        tables.put(elected)
        return (LeaderChanged(elected),)
    if not command.unclean or command.leader not in stream.holders:
        return refused(
            InvalidConfig, f"leader: {command.leader!r} is not in the ISR of {stream.name!r}", field="leader"
        )
    return _elect_uncleanly(tables, stream, command)


def _elect_uncleanly(tables: Tables, stream: Stream, command: ChangeLeader) -> Events:
    """Begin a reign on the leader's log, whatever it holds.

    The leader alone has what this stream holds from now on, and no member of the former ISR may come back as
    one. A read replica changes places with the first of them, so that there are as many of each as before.
    """
    leader, given_up = command.leader, stream.isr_nodes
    replicas, read_replicas = stream.replicas, stream.read_replicas
    if leader in read_replicas:
        if stream.target is not None:
            return refused(
                InvalidConfig,
                f"leader: {leader!r} is a read replica, and {stream.name!r} is being moved: cancel the move",
                field="leader",
            )
        other = {leader: given_up[0], given_up[0]: leader}
        replicas = tuple(other.get(node, node) for node in replicas)
        read_replicas = tuple(other.get(node, node) for node in read_replicas)
    leader_epoch = LeaderEpoch(stream.leader_epoch + 1)
    elected = replace(
        stream,
        replicas=replicas,
        read_replicas=read_replicas,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=(InSyncReplica(leader, tables.nodes[leader].directory),),
        isr_version=stream.isr_version + 1,
        departed=(),
        blank=tuple(node for node in stream.blank if node in replicas and node != leader),
        last_unclean=UncleanElection(leader, leader_epoch, command.unclean_at, given_up),
    )
    tables.put(elected)
    return (LeaderChanged(elected), UncleanlyElected(elected, given_up=stream.isr))


def begin_stream(tables: Tables, command: BeginStream) -> Events:
    """Let the stream store records from now on, in that reign; repeats are harmless."""
    stream = led_stream(tables, command)
    if not isinstance(stream, Stream):
        return stream
    begun = replace(stream, begun=True)
    tables.put(begun)
    return (StreamUpdated(begun, before=stream),)


def change_isr(tables: Tables, command: ChangeIsr) -> Events:
    """Put the proposed ISR in force if its proposer still leads and nothing changed underneath."""
    stream = led_stream(tables, command)
    if not isinstance(stream, Stream):
        return stream
    if stream.isr_version != command.expected_isr_version:
        return refused(
            Fenced,
            f"stream {stream.name!r} is at isr_version {stream.isr_version}",
            isr_version=stream.isr_version,
        )
    refusal = _membership_refusal(tables, stream, command.isr)
    if refusal is not None:
        return refusal
    proposed = {member.node_id for member in command.isr}
    isr = tuple(
        InSyncReplica(node_id, tables.nodes[node_id].directory)
        for node_id in stream.replicas
        if node_id in proposed
    )
    blank = tuple(node for node in stream.blank if node not in proposed)
    changed = replace(stream, isr=isr, isr_version=stream.isr_version + 1, blank=blank)
    tables.put(changed)
    return (IsrChanged(changed),)


def led_stream(tables: Tables, command: BeginStream | ChangeIsr | AdvanceTier | SetTxid) -> Stream | Events:
    """Return the stream of a leader's command, or the refusal if its proposer does not lead in that reign."""
    stream = stream_in_life(tables, command.stream, command.incarnation)
    if stream is None:
        return unknown_stream(command.stream)
    if (stream.leader, stream.leader_epoch) == (command.leader, command.leader_epoch):
        return stream
    return refused(
        Fenced,
        f"stream {stream.name!r} is led by {stream.leader!r} at leader_epoch {stream.leader_epoch}",
        leader_epoch=stream.leader_epoch,
    )


def _membership_refusal(tables: Tables, stream: Stream, isr: tuple[NodeAtEpoch, ...]) -> Events | None:
    proposed = [member.node_id for member in isr]
    if len(set(proposed)) != len(proposed) or not set(proposed) <= set(stream.replicas):
        return refused(InvalidConfig, f"isr: {proposed} are not distinct replicas", field="isr")
    if stream.leader not in proposed:
        return refused(InvalidConfig, f"isr: the leader {stream.leader!r} must stay in it", field="isr")
    for member in isr:
        refusal = _stale_node(tables, member.node_id, member.node_epoch)
        if refusal is not None:
            return refusal
    return None


def _stale_node(tables: Tables, node_id: NodeId, node_epoch: NodeEpoch) -> Events | None:
    node = tables.nodes.get(node_id)
    current = node.node_epoch if node else NodeEpoch(0)
    if current == node_epoch:
        return None
    return refused(
        Fenced, f"node {node_id!r} is at node_epoch {current}, not {node_epoch}", node_epoch=current
    )


def due_elections(tables: Tables) -> tuple[ChangeLeader, ...]:
    """Return the command that elects a leader for every stream that has none and can have one.

    The first eligible member in the order of the replicas is preferred, so that leaders stay where
    placement put them.
    """
    return tuple(
        ChangeLeader(
            stream=stream.name,
            incarnation=stream.incarnation,
            leader=eligible.node_id,
            node_epoch=tables.nodes[eligible.node_id].node_epoch,
            expected_leader_epoch=stream.leader_epoch,
        )
        for stream in sorted(tables.streams.values(), key=lambda stream: stream.name)
        if stream.leader is None and (eligible := _first_eligible(tables, stream)) is not None
    )


def _first_eligible(tables: Tables, stream: Stream) -> InSyncReplica | None:
    return next((member for member in stream.isr if tables.has_log(stream, member)), None)
