"""Builders of catalogues and their commands, and hypothesis strategies for command sequences."""

from collections.abc import Sequence
from datetime import timedelta

from hypothesis import strategies as st

from envelope.errors import JetstreamError
from envelope.types import (
    AckPolicy,
    Incarnation,
    LeaderEpoch,
    LogIndex,
    NodeEpoch,
    NodeId,
    StreamName,
    TimestampUs,
)
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeIsr,
    ChangeLeader,
    Command,
    ConfirmRemoval,
    CreateStream,
    DeleteStream,
    FinishReassignment,
    ForgetNode,
    LimitNamespace,
    NameCluster,
    NodeAtEpoch,
    NodeLevel,
    ReassignReplicas,
    RegisterNode,
    RotateTicketKey,
    SetDefaultReplicas,
    SetFeatureLevel,
    SetVoters,
    UpdateStream,
)
from metadata.catalog.events import CommandRefused, Events
from metadata.features import LATEST_LEVEL
from metadata.namespaces import NamespaceLimits
from metadata.stream_config import Retention, StreamConfig
from metadata.stream_patch import StreamPatch
from metadata.tickets import TicketKey

CREATED = TimestampUs(1_700_000_000_000_000)


def register(
    node: str = "n1",
    directory: str | None = None,
    *,
    unsynced_kept: bool = False,
    lost: Sequence[str] = (),
    restored: Sequence[str] = (),
    feature_level: int | None = LATEST_LEVEL,
) -> RegisterNode:
    """A start of ``node`` on its own directory, or on another, without some logs, or with some that were.

    With ``feature_level=None`` it is one of feature level 0, or of a cluster at that level.
    """
    place = directory or f"disk-of-{node}"
    return RegisterNode(
        node_id=NodeId(node),
        directory=place,
        host="127.0.0.1",
        port=7000,
        http_port=8000,
        version="0.1.0",
        unsynced_kept=unsynced_kept,
        lost=tuple(map(Incarnation, lost)),
        restored=tuple(map(Incarnation, restored)),
        feature_level=feature_level,
    )


def create(
    name: str = "orders",
    incarnation: str | None = None,
    nodes: Sequence[str] = ("n1",),
    read_replicas: Sequence[str] = (),
    *,
    begun: bool = True,
    **config: object,
) -> CreateStream:
    """A creation with one replica on each of ``nodes``, the first one leading, and these read replicas."""
    subject = f"{name.replace('/', '.')}.>"
    fields: dict[str, object] = {"name": name, "subject": subject, "replicas": len(nodes)}
    fields["read_replicas"] = len(read_replicas)
    return CreateStream(
        config=StreamConfig.model_validate(fields | config),
        incarnation=Incarnation(incarnation or f"life-1-{name.encode().hex()}"),
        created=CREATED,
        replicas=tuple(NodeId(node) for node in nodes),
        leader=NodeId(nodes[0]),
        read_replicas=tuple(NodeId(node) for node in read_replicas),
        begun=begun,
    )


def partition(
    of: str = "orders",
    number: int = 0,
    partitions: int = 4,
    incarnation: str | None = None,
    by: str = "key",
    nodes: Sequence[str] = ("n1",),
    **config: object,
) -> CreateStream:
    """A creation of one partition of ``of``, as one of so many."""
    fields: dict[str, object] = {"partition_of": of, "partition": number, "partitions": partitions}
    fields |= {"partition_by": by, "subject": f"{of.replace('/', '.')}.>"}
    return create(f"{of}/{number}", incarnation, nodes, (), begun=True, **(fields | config))


def update(name: str = "orders", /, **changes: object) -> UpdateStream:
    """A merge patch of the named fields."""
    return UpdateStream(stream=StreamName(name), patch=StreamPatch.model_validate(changes))


def limit_namespace(namespace: str, /, **changes: object) -> LimitNamespace:
    """A change of the named limits."""
    return LimitNamespace(namespace, NamespaceLimits.model_validate(changes))


def catalog_of(*commands: Command) -> Catalog:
    """A catalogue that took ``commands`` and refused none of them."""
    catalog = Catalog()
    for command in commands:
        assert refusal(apply(catalog, command)) is None, command
    return catalog


def apply(catalog: Catalog, command: Command) -> Events:
    """Apply at the next index."""
    return catalog.apply(LogIndex(catalog.applied + 1), command)


def refusal(events: Events) -> JetstreamError | None:
    """The error with which a command was refused, if it was."""
    first = events[0]
    return first.exception() if isinstance(first, CommandRefused) else None


# --- strategies: few names and nodes, so that commands meet -------------------------------------------

NODES = ("n1", "n2", "n3")
NAMES = ("a", "A", "a/b", "a-b", "orders")
_node_ids = st.sampled_from(NODES).map(NodeId)
_names = st.sampled_from(NAMES).map(StreamName)
_lives = st.sampled_from([f"life-{number}" for number in range(6)]).map(Incarnation)
_small = st.integers(min_value=0, max_value=4)
_read_replicas = st.lists(_node_ids, max_size=2).map(tuple)

_retained = st.sampled_from((None, None, 1 << 16, 1 << 20))
limits = st.fixed_dictionaries(
    {},
    optional={
        "streams": st.sampled_from((None, 0, 1, 2)),
        "bytes": st.sampled_from((None, 0, 1 << 23, 1 << 30)),
        "creations_per_minute": st.sampled_from((None, 1, 2)),
        "subjects": st.sampled_from((None, ["a.>"], ["a.*", "b"])),
    },
)

configs = st.builds(
    lambda name, subject, replicas, read, ack, window, labels, retained: StreamConfig(
        name=name,
        subject=subject,
        replicas=replicas,
        read_replicas=read,
        ack=ack,
        dedupe_window=window,
        labels=labels,
        retention=Retention(bytes=retained),
    ),
    name=_names,
    subject=st.sampled_from(("a.>", "a.*", "b", ">", "_INBOX.>", "jetstream.api.>")),
    replicas=st.integers(min_value=1, max_value=3),
    read=st.sampled_from((0, 0, 1)),
    ack=st.sampled_from(AckPolicy),
    window=st.sampled_from((timedelta(0), timedelta(seconds=1), timedelta(minutes=2))),
    labels=st.dictionaries(st.sampled_from(("x", "y", "z")), st.sampled_from(("1", "2")), max_size=3),
    retained=_retained,
)

patches = st.fixed_dictionaries(
    {},
    optional={
        "subject": st.sampled_from((None, "a.>", "c", ">")),
        "replicas": st.sampled_from((None, 1, 2, 3)),
        "min_insync_replicas": st.sampled_from((None, 1, 2, 3)),
        "read_replicas": st.sampled_from((None, 0, 1, 2)),
        "sync": st.sampled_from(("always", "os")),
        "ack": st.sampled_from((None, "all", "none")),
        "retention": st.sampled_from(
            (None, {}, {"age": "P1D"}, {"age": None, "messages": 5}, {"bytes": 1 << 20})
        ),
        "labels": st.sampled_from((None, {}, {"x": "3"}, {"x": None})),
    },
).map(StreamPatch.model_validate)

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(
        register,
        node=st.sampled_from(NODES),
        directory=st.sampled_from((None, None, "spare-1", "spare-2")),
        unsynced_kept=st.booleans(),
        feature_level=st.sampled_from((LATEST_LEVEL, LATEST_LEVEL, None)),
    ),
    st.builds(
        SetFeatureLevel,
        level=st.integers(0, LATEST_LEVEL),
        nodes=st.lists(
            st.builds(NodeLevel, _node_ids, _small.map(NodeEpoch), st.integers(0, LATEST_LEVEL)), max_size=4
        ).map(tuple),
    ),
    st.builds(
        CreateStream,
        config=configs,
        incarnation=_lives,
        created=st.integers(-5, 5).map(lambda step: TimestampUs(CREATED + 20_000_000 * step)),
        replicas=st.lists(_node_ids, min_size=1, max_size=3).map(tuple),
        leader=_node_ids,
        read_replicas=_read_replicas,
    ),
    st.builds(
        UpdateStream,
        stream=_names,
        patch=patches,
        incarnation=st.none() | _lives,
        read_replicas=st.none() | _read_replicas,
        replicas=st.none() | st.lists(_node_ids, max_size=3).map(tuple),
    ),
    st.builds(SetDefaultReplicas, replicas=_small),
    st.builds(SetVoters, voters=st.none() | _small),
    st.builds(NameCluster, cluster_id=st.sampled_from(("0" * 32, "1" * 32, "none"))),
    st.builds(DeleteStream, stream=_names, incarnation=st.none() | _lives),
    st.builds(ConfirmRemoval, node_id=_node_ids, incarnation=_lives),
    st.builds(
        ChangeLeader,
        stream=_names,
        incarnation=_lives,
        leader=_node_ids,
        node_epoch=_small.map(NodeEpoch),
        expected_leader_epoch=_small.map(LeaderEpoch),
        unclean=st.booleans(),
    ),
    st.builds(
        ChangeIsr,
        stream=_names,
        incarnation=_lives,
        leader=_node_ids,
        leader_epoch=_small.map(LeaderEpoch),
        expected_isr_version=_small,
        isr=st.lists(st.builds(NodeAtEpoch, _node_ids, _small.map(NodeEpoch)), max_size=3).map(tuple),
    ),
    st.builds(
        ReassignReplicas,
        stream=_names,
        incarnation=_lives,
        target=st.lists(_node_ids, max_size=3).map(tuple),
        read_replicas=st.none() | _read_replicas,
        expected_isr_version=st.none() | _small,
    ),
    st.builds(
        FinishReassignment,
        stream=_names,
        incarnation=_lives,
        expected_isr_version=_small,
        expected_leader_epoch=_small.map(LeaderEpoch),
    ),
    st.builds(CancelReassignment, stream=_names, incarnation=_lives),
    st.builds(ForgetNode, node_id=_node_ids),
    st.builds(
        RotateTicketKey,
        key=st.sampled_from("abc").map(lambda word: TicketKey(word, 32 * f"{ord(word):x}", TimestampUs(1))),
        expected=st.none() | st.sampled_from("abc"),
        revoke=st.booleans(),
    ),
    st.builds(
        LimitNamespace,
        namespace=st.sampled_from(("", "a", "a/b", "orders")),
        changes=limits.map(NamespaceLimits.model_validate),
    ),
)
