"""How streams come, change and go."""

from dataclasses import replace

from pydantic import ValidationError

from envelope.errors import (
    InvalidConfig,
    InvalidName,
    JetstreamError,
    LimitReached,
    ReassignmentUnderWay,
    StreamExists,
    UnknownNode,
    UnknownStream,
)
from envelope.limits import STREAMS_MAX
from envelope.types import Incarnation, NodeId, StreamName, SyncMode
from metadata.catalog.commands import (
    ConfirmRemoval,
    CreateStream,
    DeleteStream,
    UpdateStream,
)
from metadata.catalog.directories import is_incarnation
from metadata.catalog.events import (
    Events,
    PartitionCountChanged,
    RemovalConfirmed,
    StreamCreated,
    StreamDeleted,
    StreamFound,
    StreamUpdated,
    refused,
    refused_by,
)
from metadata.catalog.holders import (
    HoldersPut,
    put_holders,
    read_replicas_refusal,
    target_refusal,
    too_many_removals,
    wanted_replicas,
    with_target,
)
from metadata.catalog.namespaces import beyond_limits, count_creation, creation_beyond_rate, growth
from metadata.catalog.nodes import unknown_nodes
from metadata.catalog.tables import InSyncReplica, Stream, Tables, TierMark
from metadata.features import Feature, lacking
from metadata.stream_config import StreamConfig, partition_name, reserved_refusal
from metadata.stream_patch import StreamPatch, patched
from metadata.validation import first_problem


def create_stream(tables: Tables, command: CreateStream) -> Events:
    """Create the stream with all its replicas in sync (all are empty), its leader in reign 1."""
    config = command.config
    existing = tables.streams.get(StreamName(config.name))
    if existing is not None:
        return _found(existing, config)
    refusal = _name_refusal(tables, config) or _creation_refusal(tables, command)
    if refusal is not None:
        return refusal
    stream = Stream(
        config=config,
        incarnation=command.incarnation,
        created=command.created,
        replicas=command.replicas,
        leader=command.leader,
        leader_epoch=command.leader_epoch,
        isr=tuple(InSyncReplica(node_id, tables.nodes[node_id].directory) for node_id in command.replicas),
        isr_version=1,
        read_replicas=command.read_replicas,
        tier=command.tier,
        begun=command.begun,
    )
    refusal = beyond_limits(tables.namespaces, growth(None, stream)) or creation_beyond_rate(
        tables.namespaces, stream.name, stream.created
    )
    if refusal is not None:
        return refusal
    count = _shared_by(tables, config)
    tables.put(stream)
    count_creation(tables.namespaces, stream.name, stream.created)
    return (StreamCreated(stream), *_partitions_changed(tables, config, count))


def _found(existing: Stream, config: StreamConfig) -> Events:
    if existing.config == config:
        return (StreamFound(existing),)
    differing = ", ".join(existing.config.differing(config))
    return refused(
        StreamExists,
        f"stream {config.name!r} exists with another {differing}",
        fields=differing,
    )


def _creation_refusal(tables: Tables, command: CreateStream) -> Events | None:
    config = command.config
    reason = reserved_refusal(config, command.api_prefix)
    if reason is not None:
        return refused(InvalidConfig, reason, field="subject")
    if len(tables.streams) >= STREAMS_MAX:
        return refused(LimitReached, f"the cluster has {STREAMS_MAX} streams, its limit", limit=STREAMS_MAX)
    unknown = unknown_nodes(tables, (*command.replicas, command.leader))
    if unknown:
        return refused(UnknownNode, f"node {unknown[0]!r} is not registered", node_id=unknown[0])
    if len(command.replicas) != config.replicas or len(set(command.replicas)) != config.replicas:
        placed = len(set(command.replicas))
        return refused(
            InvalidConfig,
            f"replicas: {config.replicas} wanted, {placed} nodes to hold them",
            field="replicas",
        )
    if command.leader not in command.replicas:
        return refused(InvalidConfig, f"leader: {command.leader!r} is no replica", field="leader")
    return (
        _incarnation_refusal(tables, command.incarnation)
        or _history_refusal(command)
        or _miscounted(config, command.read_replicas)
        or read_replicas_refusal(tables, command.incarnation, command.read_replicas, command.replicas)
    )


def _name_refusal(tables: Tables, config: StreamConfig) -> Events | None:
    """Return why no stream or partition can have that name beside those that exist, None if it can (K11)."""
    if config.is_partitioned:
        return refused(InvalidConfig, "partitions: they are created one by one", field="partitions")
    numbers = tables.partitions.numbers(config.name)
    if numbers:
        return refused(
            StreamExists,
            f"stream {config.name!r} exists: it is partitioned",
            partitions=len(numbers),
        )
    if config.partition_of is None:
        return None
    if StreamName(config.partition_of) in tables.streams:
        return refused(StreamExists, f"stream {config.partition_of!r} exists and is not partitioned")
    for number in tables.partitions.numbers(config.partition_of)[:1]:
        sibling = tables.streams[partition_name(config.partition_of, number)].config
        if sibling.partition_by is not config.partition_by:
            return refused(
                StreamExists,
                f"stream {config.partition_of!r} exists and is partitioned by {sibling.partition_by}",
                fields="partition_by",
            )
    return None


def _shared_by(tables: Tables, config: StreamConfig) -> int:
    """Return how many partitions share the messages of the stream that this is a partition of, if it is."""
    return tables.partitions.count(config.partition_of or "")


def _partitions_changed(tables: Tables, config: StreamConfig, before: int) -> Events:
    """Return the event of a partition that was created or deleted, if others share the messages now."""
    count = _shared_by(tables, config)
    if config.partition_of is None or count == before:
        return ()
    return (PartitionCountChanged(StreamName(config.partition_of), count),)


def _history_refusal(command: CreateStream) -> Events | None:
    """Return why a stream cannot go on from what an earlier life has left, None if it can."""
    if command.leader_epoch < 1:
        return refused(InvalidConfig, f"leader_epoch: {command.leader_epoch}", field="leader_epoch")
    return refused_mark(command.tier) if command.tier is not None else None


def refused_mark(mark: TierMark) -> Events | None:
    """Return why no stream can have this mark, None if one can."""
    if mark.version >= 1 and 0 <= mark.start <= mark.end:
        return None
    return refused(InvalidConfig, f"tier: {mark} is no range", field="tier")


def _miscounted(config: StreamConfig, read_replicas: tuple[NodeId, ...]) -> Events | None:
    if len(read_replicas) == config.read_replicas:
        return None
    return refused(
        InvalidConfig,
        f"read_replicas: {config.read_replicas} wanted, {len(read_replicas)} nodes to hold them",
        field="read_replicas",
    )


def _incarnation_refusal(tables: Tables, incarnation: Incarnation) -> Events | None:
    if not is_incarnation(incarnation):
        return refused(
            InvalidName, f"invalid incarnation {incarnation!r}: use lower-case letters, digits, '-'"
        )
    if incarnation in tables.incarnations or incarnation in tables.removals:
        return refused(InvalidConfig, f"incarnation {incarnation!r} is in use", field="incarnation")
    return None


def update_stream(tables: Tables, command: UpdateStream) -> Events:
    """Merge the patch into the stream's configuration; all of it, or nothing."""
    stream = stream_in_life(tables, command.stream, command.incarnation)
    if stream is None:
        return unknown_stream(command.stream)
    refusal = _level_refusal(tables, stream, command.patch) or _move_refusal(stream, command)
    if refusal is not None:
        return refusal
    try:
        config = patched(stream.config, command.patch)
    except JetstreamError as error:
        return refused_by(error)
    except ValidationError as error:
        problem = first_problem(error)
        return refused(InvalidConfig, problem.description, field=problem.field)
    reason = reserved_refusal(config, command.api_prefix)
    if reason is not None:
        return refused(InvalidConfig, reason, field="subject")
    return _minimum_refusal(stream, config) or _reconfigured(tables, stream, command, config)


def _minimum_refusal(stream: Stream, config: StreamConfig) -> Events | None:
    """Return why a stream that is being moved cannot have this configuration, None if it can."""
    minimum, target = config.min_insync_replicas, stream.target
    if minimum is None or target is None or minimum <= len(target):
        return None
    return refused(
        InvalidConfig,
        f"min_insync_replicas: {minimum} is more than the {len(target)} replicas it is being moved to",
        field="min_insync_replicas",
    )


def _level_refusal(tables: Tables, stream: Stream, patch: StreamPatch) -> Events | None:
    """Return why nodes of the cluster's feature level refuse another number of replicas, None if they do not.

    They refuse it also where it is the number that the stream is being moved to.
    """
    if patch.replicas in (None, stream.config.replicas):
        return None
    error = lacking(Feature.REPLICA_NUMBERS, tables.cluster.feature_level)
    return None if error is None else refused_by(error)


def _move_refusal(stream: Stream, command: UpdateStream) -> Events | None:
    """Return why the number of replicas cannot become what a patch says, None if it can, or is to stay."""
    patch = command.patch
    if "replicas" in patch.model_fields_set and patch.replicas is None:
        return refused(InvalidConfig, "replicas: a number is wanted", field="replicas")
    count = wanted_replicas(stream, patch)
    if count is None:
        return None
    if stream.target is not None:
        return refused(
            ReassignmentUnderWay,
            f"replicas: stream {stream.name!r} is being moved to {len(stream.target)} replicas: wait for the "
            "end, or cancel that",
            field="replicas",
        )
    unplaced = _unplaced(stream, command.replicas, count)
    if unplaced is not None:
        return unplaced
    minimum, present = patch.min_insync_replicas, stream.config.replicas
    if minimum is not None and present < minimum <= count:
        return refused(
            InvalidConfig,
            f"min_insync_replicas: {minimum} is more than the replicas that there are, {present}, until the "
            f"others are in sync: set it then",
            field="min_insync_replicas",
        )
    return None


def _unplaced(stream: Stream, nodes: tuple[NodeId, ...] | None, count: int) -> Events | None:
    """Return why these are not the nodes for so many replicas, None if they are as many."""
    if nodes is None:
        return refused(
            ReassignmentUnderWay,
            f"replicas: stream {stream.name!r} was moved while nodes were looked for: ask again",
            field="replicas",
        )
    placed = len(set(nodes))
    if placed == count:
        return None
    return refused(InvalidConfig, f"replicas: {count} wanted, {placed} nodes to hold them", field="replicas")


def _reconfigured(tables: Tables, stream: Stream, command: UpdateStream, config: StreamConfig) -> Events:
    """Put a configuration in force that is right in itself, with the read replicas that it wants."""
    chosen = command.read_replicas
    read_replicas = stream.read_replicas if chosen is None else chosen
    updated = replace(stream, config=config, read_replicas=read_replicas, unsynced=_unsynced(stream, config))
    target = command.replicas if wanted_replicas(stream, command.patch) is not None else None
    if target is not None:
        updated = with_target(updated, target)
    beyond = beyond_limits(tables.namespaces, growth(stream, updated))
    if target is None and set(read_replicas) == set(stream.read_replicas):
        refusal = _miscounted(config, read_replicas) or beyond
        if refusal is None:
            tables.put(updated)
        return refusal or (StreamUpdated(updated, before=stream),)
    refusal = (
        (target_refusal(tables, updated, target) if target is not None else None)
        or _miscounted(config, read_replicas)
        or read_replicas_refusal(tables, stream.incarnation, read_replicas, updated.replicas)
        or beyond
    )
    if refusal is not None:
        return refusal
    put = put_holders(tables, stream, updated)
    return (StreamUpdated(put.stream, stream, put.removal),) if isinstance(put, HoldersPut) else put


def _unsynced(stream: Stream, config: StreamConfig) -> tuple[NodeId, ...]:
    """Return the nodes that may count unsynced records: all that wrote under another ``sync``."""
    has_become_always = config.sync is SyncMode.ALWAYS is not stream.config.sync
    return stream.holders if has_become_always else stream.unsynced


def delete_stream(tables: Tables, command: DeleteStream) -> Events:
    """Forget the stream; its files are owed removal by every replica."""
    stream = stream_in_life(tables, command.stream, command.incarnation)
    if stream is None:
        return unknown_stream(command.stream)
    if not tables.may_owe_removal(stream):
        return too_many_removals()
    count = _shared_by(tables, stream.config)
    tables.drop(stream)
    deleted = StreamDeleted(stream, tables.owe_removal(stream, stream.holders))
    return (deleted, *_partitions_changed(tables, stream.config, count))


def confirm_removal(tables: Tables, command: ConfirmRemoval) -> Events:
    """Strike the node off the removal; the last one ends it. Repeats are harmless."""
    removal = tables.removals.get(command.incarnation)
    if removal is not None:
        tables.strike_off(removal, command.node_id)
    return (RemovalConfirmed(command.node_id, command.incarnation),)


def stream_in_life(tables: Tables, name: StreamName, incarnation: Incarnation | None) -> Stream | None:
    """Return the stream of that name, if it is in that life (any, if None)."""
    stream = tables.streams.get(name)
    if stream is None or incarnation not in (None, stream.incarnation):
        return None
    return stream


def unknown_stream(name: StreamName) -> Events:
    """Return the refusal of a command to a stream that does not exist (any more)."""
    return refused(UnknownStream, f"no stream {name!r}", stream=name)
