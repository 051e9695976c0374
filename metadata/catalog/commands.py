"""Commands of the catalogue, and their bytes in the metadata log.

A command is JSON with sorted keys and no spaces, its ``kind`` beside its fields; equal commands are
equal bytes. Bytes that cannot be read back exactly are corruption: a command is never guessed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError

from envelope.errors import CorruptDataError, JetstreamError, UnsupportedFeatureLevel
from envelope.types import (
    Incarnation,
    LeaderEpoch,
    LogIndex,
    NodeEpoch,
    NodeId,
    Offset,
    StreamName,
    TimestampUs,
)
from metadata.catalog.tables import TierMark
from metadata.features import LATEST_LEVEL, Feature
from metadata.namespaces import NamespaceLimits
from metadata.stream_config import API_PREFIX_DEFAULT, StreamConfig
from metadata.stream_patch import StreamPatch
from metadata.tickets import TicketKey


class _Exact:
    """A row of which every field is known: pydantic refuses others."""

    __slots__ = ()
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid", strict=False)


@dataclass(frozen=True, slots=True)
class RegisterNode(_Exact):
    """A node has started on a data directory: it gets a new node_epoch, and all its reigns end."""

    node_id: NodeId
    directory: str
    """Identity of the data directory, which follows the disk and not the node."""
    host: str
    port: int
    http_port: int | None = None
    version: str = ""
    unsynced_kept: bool = False
    """All that an earlier start wrote is there, also what it never synced: it stopped cleanly, or its machine
    has run on since. Otherwise records of streams with ``sync: interval | os`` may be gone."""
    peer_host: str | None = None
    peer_port: int | None = None
    """Where other nodes reach it, both or neither; None: it is alone."""
    rack: str | None = None
    """What it may fail together with."""
    lost: tuple[Incarnation, ...] = ()
    """Lives of streams whose logs should be in its directory, and are not. Of a stream that has not begun
    none is missed."""
    restored: tuple[Incarnation, ...] = ()
    """Lives of streams whose logs are there again, and of which it is a blank member of the ISR. A node that
    does not know yet that it is blank names none, and stays so."""
    feature_level: int | None = None
    """The highest that the node can; None where the cluster is at level 0, whose nodes do not name it. The
    first node of a cluster brings its level."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream(_Exact):
    """Create a stream, or find it if it exists with an equal configuration."""

    config: StreamConfig
    incarnation: Incarnation
    """Drawn by the proposer; used only if the stream is new."""
    created: TimestampUs
    replicas: tuple[NodeId, ...]
    leader: NodeId
    api_prefix: str = API_PREFIX_DEFAULT
    """Of the node that took the request, so that a replay decides as it did."""
    read_replicas: tuple[NodeId, ...] = ()
    leader_epoch: LeaderEpoch = LeaderEpoch(1)  # noqa: RUF009 - a number
    """Of the first reign; above all that wrote what ``tier`` speaks of."""
    tier: TierMark | None = None
    """What an earlier life of the stream has left in the object store, from which this one goes on."""
    begun: bool = True
    """False: nothing is stored before `BeginStream`. Entries of before there was that are of streams that
    store at once."""


@dataclass(frozen=True, slots=True)
class BeginStream(_Exact):
    """A stream's first leader has a log, and may store from now on: a node without one is no new replica."""

    stream: StreamName
    incarnation: Incarnation
    leader: NodeId
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStream(_Exact):
    """Merge changes into a stream's configuration."""

    stream: StreamName
    patch: StreamPatch
    incarnation: Incarnation | None = None
    """If given, only this life of the stream."""
    api_prefix: str = API_PREFIX_DEFAULT
    read_replicas: tuple[NodeId, ...] | None = None
    """Which nodes these are to be, as many as the configuration then says; None: those that are."""
    replicas: tuple[NodeId, ...] | None = None
    """The target of the reassignment that begins if the patch says another number of replicas, as many."""


@dataclass(frozen=True, slots=True)
class DeleteStream(_Exact):
    """Forget a stream and order the removal of its files."""

    stream: StreamName
    incarnation: Incarnation | None = None
    """If given, only this life of the stream: a late repeat spares a stream created since."""


@dataclass(frozen=True, slots=True)
class ConfirmRemoval(_Exact):
    """A node has removed the files of a deleted stream, durably."""

    node_id: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ChangeLeader(_Exact):
    """Begin the reign ``expected_leader_epoch + 1``; compare-and-set on both epochs.

    Source: KIP-966 (what an unclean election is, and what a node that lost unsynced records may not be).
    """

    stream: StreamName
    incarnation: Incarnation
    leader: NodeId
    node_epoch: NodeEpoch
    """Of the leader to be; refused if it has started anew since."""
    expected_leader_epoch: LeaderEpoch
    unclean: bool = False
    """Any holder of the stream is elected: committed records that it lacks are given up."""
    unclean_at: TimestampUs | None = None
    """When that was proposed; shown, never compared."""


@dataclass(frozen=True, slots=True)
class NodeAtEpoch(_Exact):
    """A start of a node, and so a directory: a node_epoch never outlives either."""

    node_id: NodeId
    node_epoch: NodeEpoch


@dataclass(frozen=True, slots=True)
class ChangeIsr(_Exact):
    """A leader's proposal of a new ISR; compare-and-set on its reign and the ISR's version.

    Source: KIP-497 (the proposal), KIP-903 (every member by its node_epoch).
    """

    stream: StreamName
    incarnation: Incarnation
    leader: NodeId
    leader_epoch: LeaderEpoch
    expected_isr_version: int
    isr: tuple[NodeAtEpoch, ...]


@dataclass(frozen=True, slots=True)
class AdvanceTier(_Exact):
    """A leader's new mark of what is in the object store; compare-and-set on its reign and the version."""

    stream: StreamName
    incarnation: Incarnation
    leader: NodeId
    leader_epoch: LeaderEpoch
    mark: TierMark
    """Its version is one above that of the present mark; neither end of it goes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTxid(_Exact):
    """A leader's word, which an operator gave it, that the last txid is this one; fenced by its reign."""

    stream: StreamName
    incarnation: Incarnation
    leader: NodeId
    leader_epoch: LeaderEpoch
    offset: Offset
    """The leader's log end: what it had stored does not count."""
    txid: int


@dataclass(frozen=True, slots=True)
class ReassignReplicas(_Exact):
    """Move the stream to other nodes, or put the same in another order; replaces a reassignment under way.

    Until it is finished the stream has its replicas of before and those of the target.

    Source: KIP-455.
    """

    stream: StreamName
    incarnation: Incarnation
    target: tuple[NodeId, ...]
    """The first is the preferred leader."""
    read_replicas: tuple[NodeId, ...] | None = None
    """Which nodes these are from now on; None: those that are."""
    expected_isr_version: int | None = None
    """If given, only at this version of the ISR: what was decided on an older row is void."""


@dataclass(frozen=True, slots=True)
class FinishReassignment(_Exact):
    """Let go the replicas that are not in the target, which is in sync and leads; compare-and-set."""

    stream: StreamName
    incarnation: Incarnation
    expected_isr_version: int
    expected_leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class CancelReassignment(_Exact):
    """Go back to the replicas from before the reassignment."""

    stream: StreamName
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class ForgetNode(_Exact):
    """Drop a node that holds nothing and does not come back; the removals that it owes are struck off."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class RotateTicketKey(_Exact):
    """Let a new key sign tickets; compare-and-set on the newest."""

    key: TicketKey
    expected: str | None
    """Id of the newest key until now; None: there is none."""
    revoke: bool = False
    """Whether tickets of all earlier keys end at once."""


@dataclass(frozen=True, slots=True)
class LimitNamespace(_Exact):
    """Change what a namespace may have."""

    namespace: str
    """Empty: all streams."""
    changes: NamespaceLimits
    """Only the fields that were set; null takes a limit away."""


@dataclass(frozen=True, slots=True)
class SetDefaultReplicas(_Exact):
    """Let streams that are created without a number of replicas have so many."""

    replicas: int


@dataclass(frozen=True, slots=True)
class SetVoters(_Exact):
    """Let the metadata group have so many voters."""

    voters: int | None
    """1, 3 or 5; None: nobody says how many."""


@dataclass(frozen=True, slots=True)
class NameCluster(_Exact):
    """Give the cluster an id that no other has; only the first command does."""

    cluster_id: str
    """32 hexadecimal digits, drawn at random by the proposer."""


@dataclass(frozen=True, slots=True)
class NodeLevel(_Exact):
    """The highest feature level that a start of a node can, as it has said itself."""

    node_id: NodeId
    node_epoch: NodeEpoch
    feature_level: int


@dataclass(frozen=True, slots=True)
class SetFeatureLevel(_Exact):
    """Raise the cluster's feature level, if every registered node can do as much.

    The abilities of the nodes are part of the command, as level 0 has no place for them in the catalogue. A
    node that has started again since, perhaps in an older version, has another node_epoch.
    """

    level: int
    nodes: tuple[NodeLevel, ...]


Reassignment = ReassignReplicas | FinishReassignment | CancelReassignment
LedCommand = ChangeLeader | ChangeIsr | AdvanceTier | SetTxid
StreamCommand = CreateStream | BeginStream | UpdateStream | DeleteStream | LedCommand | Reassignment
ClusterCommand = (
    LimitNamespace | RotateTicketKey | SetDefaultReplicas | SetVoters | NameCluster | SetFeatureLevel
)
Command = RegisterNode | ForgetNode | ConfirmRemoval | StreamCommand | ClusterCommand

_KINDS: Final[Mapping[str, type[Command]]] = {
    "register_node": RegisterNode,
    "create_stream": CreateStream,
    "update_stream": UpdateStream,
    "delete_stream": DeleteStream,
    "confirm_removal": ConfirmRemoval,
    "begin_stream": BeginStream,
    "change_leader": ChangeLeader,
    "change_isr": ChangeIsr,
    "advance_tier": AdvanceTier,
    "set_txid": SetTxid,
    "reassign_replicas": ReassignReplicas,
    "finish_reassignment": FinishReassignment,
    "cancel_reassignment": CancelReassignment,
    "forget_node": ForgetNode,
    "rotate_ticket_key": RotateTicketKey,
    "limit_namespace": LimitNamespace,
    "set_default_replicas": SetDefaultReplicas,
    "set_voters": SetVoters,
    "name_cluster": NameCluster,
    "set_feature_level": SetFeatureLevel,
}
_LATER_KINDS: Final = {
    "set_default_replicas": Feature.DEFAULT_REPLICAS,
    "set_voters": Feature.MEMBER_CHANGES,
    "name_cluster": Feature.CLUSTER_IDS,
}
_LATER_FIELDS: Final[Mapping[str, Mapping[str, Feature]]] = {
    "update_stream": {"replicas": Feature.REPLICA_NUMBERS},
    "reassign_replicas": {"expected_isr_version": Feature.INTERNAL_GROWTH},
    "register_node": {"feature_level": Feature.REGISTERED_LEVELS},
}
"""Kinds and fields that nodes of an older level cannot read. A field that is None is not written."""
_UNKNOWN: Final = ("unexpected_keyword_argument", "extra_forbidden")
"""What pydantic calls a field that it does not know."""
_KIND_OF: Final = {command: kind for kind, command in _KINDS.items()}
_ADAPTERS: Final[Mapping[str, TypeAdapter[Command]]] = {
    kind: TypeAdapter(command) for kind, command in _KINDS.items()
}


def encode_command(command: Command) -> bytes:
    """Return the canonical bytes of ``command``."""
    kind = _KIND_OF[type(command)]
    # In a patch, absent and null differ. Everywhere else defaults are written out, so that a later
    # version with other defaults replays what was meant.
    is_patch = isinstance(command, UpdateStream | LimitNamespace)
    body: dict[str, object] = _ADAPTERS[kind].dump_python(command, mode="json", exclude_unset=is_patch)
    for field in _LATER_FIELDS.get(kind, ()):
        if body[field] is None:
            del body[field]  # so that nodes of before can read it
    return canonical_json({"kind": kind, **body})


def feature_of(command: Command) -> Feature | None:
    """Return the feature without which a node cannot read the command; None: nodes of level 0 can.

    That which raises the level is none: it has been made sure that all nodes can read it.
    """
    kind = _KIND_OF[type(command)]
    fields = _LATER_FIELDS.get(kind, {})
    used = [feature for field, feature in fields.items() if getattr(command, field) is not None]
    return max(used, key=lambda feature: feature.level, default=_LATER_KINDS.get(kind))


def decode_command(payload: bytes, index: LogIndex) -> Command:
    """Return the command of entry ``index``.

    Raises:
        CorruptDataError: the bytes are no command.
        UnsupportedFeatureLevel: they are one of a newer version, of another kind or with more fields.
    """
    try:
        body = json.loads(payload)
        if not isinstance(body, dict):
            raise CorruptDataError(f"metadata entry {index} is not a JSON object", index=index)
        kind = body.pop("kind", None)
        if not isinstance(kind, str):
            raise CorruptDataError(f"metadata entry {index} has no kind", index=index)
        adapter = _ADAPTERS.get(kind)
        if adapter is None:
            raise _newer(index)
        return adapter.validate_python(body)
    except (ValidationError, JetstreamError, ValueError, RecursionError) as error:
        if isinstance(error, CorruptDataError | UnsupportedFeatureLevel):
            raise
        if isinstance(error, ValidationError) and any(fault["type"] in _UNKNOWN for fault in error.errors()):
            raise _newer(index) from error
        raise CorruptDataError(f"metadata entry {index} cannot be read: {error}", index=index) from error


def _newer(index: LogIndex) -> UnsupportedFeatureLevel:
    return UnsupportedFeatureLevel(
        f"metadata entry {index} is from a newer version; this node can feature level {LATEST_LEVEL}: "
        "upgrade the node",
        index=index,
        supported=LATEST_LEVEL,
    )


def canonical_json(value: object) -> bytes:
    """Return the one encoding of ``value``: sorted keys, no spaces, UTF-8 as it is, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()
