"""The holders of a stream: the target of a move, the refusals of requests, and the effects of a change.

Replicas join the ISR and lead; read replicas only follow. A node is one or the other. A node that
holds the stream no more owes the removal of its files, and leaves the ISR. Every change is a new version of
the ISR, so that nothing that was proposed about other replicas is applied after it.

A node that comes back to a stream in the reign in which it has left begins another reign, of the same leader:
leaders count the answers of followers by their reign.
"""

from dataclasses import dataclass, replace

from envelope.errors import InvalidConfig, LimitReached, RemovalPending, UnknownNode
from envelope.types import Incarnation, LeaderEpoch, NodeId
from metadata.catalog.events import Events, refused
from metadata.catalog.nodes import unknown_nodes
from metadata.catalog.tables import Removal, Stream, Tables
from metadata.limits import READ_REPLICAS_MAX, REMOVALS_MAX, REPLICAS_MAX
from metadata.stream_patch import StreamPatch


@dataclass(frozen=True, slots=True)
class HoldersPut:
    """The row with its new holders, and the files of those that left; None if nobody did."""

    stream: Stream
    removal: Removal | None


def wanted_replicas(stream: Stream, patch: StreamPatch) -> int | None:
    """Return the number of replicas to move a stream to, None if it has, or is to have, what a patch says."""
    stays = (None, stream.config.replicas, len(stream.target or ()))
    return None if patch.replicas in stays else patch.replicas


def with_target(stream: Stream, target: tuple[NodeId, ...]) -> Stream:
    """Return the row as it is while the stream is moved to ``target``: with the replicas of both."""
    settled = stream.settled_replicas
    return replace(
        stream,
        replicas=settled + tuple(node for node in target if node not in settled),
        target=None if target == settled else target,
    )


def target_refusal(tables: Tables, stream: Stream, target: tuple[NodeId, ...]) -> Events | None:
    """Return why these cannot be the replicas of a stream, None if they can."""
    if not 1 <= len(target) <= REPLICAS_MAX or len(set(target)) != len(target):
        return refused(
            InvalidConfig, f"replicas: 1 to {REPLICAS_MAX} different nodes are wanted", field="replicas"
        )
    minimum = stream.config.min_insync_replicas
    if minimum is not None and minimum > len(target):
        return refused(
            InvalidConfig,
            f"replicas: {len(target)} are fewer than min_insync_replicas: {minimum}",
            field="replicas",
        )
    return holders_refusal(tables, stream.incarnation, target)


def read_replicas_refusal(
    tables: Tables,
    incarnation: Incarnation,
    read_replicas: tuple[NodeId, ...],
    replicas: tuple[NodeId, ...],
) -> Events | None:
    """Return why these cannot be the read replicas beside ``replicas``, None if they can."""
    if len(read_replicas) > READ_REPLICAS_MAX or len(set(read_replicas)) != len(read_replicas):
        return refused(
            InvalidConfig,
            f"read_replicas: up to {READ_REPLICAS_MAX} different nodes are wanted",
            field="read_replicas",
        )
    both = [node for node in read_replicas if node in replicas]
    if both:
        return refused(
            InvalidConfig,
            f"read_replicas: {both[0]!r} is a replica, or is to be one, and cannot be both",
            field="read_replicas",
        )
    return holders_refusal(tables, incarnation, read_replicas)


def holders_refusal(tables: Tables, incarnation: Incarnation, nodes: tuple[NodeId, ...]) -> Events | None:
    """Return why one of the nodes can hold nothing now, None if all can."""
    unknown = unknown_nodes(tables, nodes)
    if unknown:
        return refused(UnknownNode, f"node {unknown[0]!r} is not registered", node_id=unknown[0])
    removal = tables.removals.get(incarnation)
    busy = [node for node in nodes if removal is not None and node in removal.pending]
    if removal is not None and busy:
        return refused(
            RemovalPending,
            f"node {busy[0]!r} has yet to remove its former replica of {removal.name!r}",
            node_id=busy[0],
        )
    return None


def put_holders(tables: Tables, before: Stream, after: Stream) -> HoldersPut | Events:
    """Put other holders in force; return what came of it, or the events of a refusal.

    Args:
        tables: changed.
        before: the row that is there.
        after: the same with other ``replicas`` or ``read_replicas``, which were found to be possible.
    """
    members = {member.node_id: member for member in before.isr}
    isr = tuple(members[node] for node in after.replicas if node in members)
    if isr != before.isr and not any(tables.has_log(before, member) for member in isr):
        return refused(
            InvalidConfig,
            f"stream {before.name!r} would be left without a replica in sync; in sync are "
            f"{', '.join(before.isr_nodes)}",
            field="replicas",
        )
    left = tuple(node for node in before.holders if node not in after.holders)
    if left and not tables.may_owe_removal(before):
        return too_many_removals()
    new = tuple(node for node in after.replicas if node not in before.replicas)
    after = replace(
        after,
        leader=after.leader if after.leader in after.replicas else None,
        isr=isr,
        isr_version=before.isr_version + 1,
        departed=(*after.departed, *left),
        blank=tuple(node for node in after.replicas if node in before.blank or node in new),
        unsynced=tuple(node for node in after.unsynced if node in after.holders),
    )
    if not set(after.holders).isdisjoint(before.departed):
        # Its log is empty now, and what it has acknowledged of the former one must not count for this one.
        after = replace(after, leader_epoch=LeaderEpoch(before.leader_epoch + 1), departed=left)
    tables.put(after)
    return HoldersPut(after, tables.owe_removal(after, left) if left else None)


def too_many_removals() -> Events:
    """Return the refusal of a command that would leave files to remove."""
    return refused(
        LimitReached, f"the files of {REMOVALS_MAX} streams wait for their removal", limit=REMOVALS_MAX
    )
