"""The rows of the catalogue and what must always hold between them.

`Tables.problems` checks them after every snapshot read and after every command in tests; `Tables.put` and
`Tables.problems_of` check the rows that a command changes. A snapshot that breaks one is refused as corrupt.

Invariants:
    K1: a stream is stored under its own name; names are unique.
    K2: incarnations are unique among live streams, and a removal of a live stream waits for none of its
        holders; so no data directory is both in use and to be removed.
    K3: a stream has as many replicas and read replicas as its configuration says, on distinct, registered
        nodes; while it is reassigned, behind the replicas those of its target that were none before.
    K4: the ISR is never empty, names distinct nodes, and only replicas; so no read replica.
    K5: a leader is in the ISR with the directory that is registered now, and is not blank.
    K6: every leader_epoch, isr_version and node_epoch is at least 1 and never goes back; a leader_epoch has
        one leader.
    K7: no directory is registered by two nodes.
    K8: a removal waits for at least one registered node.
    K10: a tier's mark begins at or below its end, and has a version of at least 1.
    K11: no stream has the name of a partitioned one, and the partitions of one are partitioned alike.
    K12: the use of namespaces that is kept is that of the streams, and where the bytes of one are limited,
        every stream in it has `retention.bytes`.
    K13: at most two keys sign tickets, with different ids, each with as many bytes as it needs.
    K14: the default replicas, the voters that are wanted and the id of the cluster are such as commands set;
        no node that was removed as a voter is registered.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from envelope.types import (
    Incarnation,
    LeaderEpoch,
    NodeEpoch,
    NodeId,
    Offset,
    PartitionBy,
    StreamName,
    SyncMode,
    TimestampUs,
)
from metadata.catalog.partitions import PartitionSets
from metadata.limits import REMOVALS_MAX, REPLICAS_DEFAULT, REPLICAS_MAX, VOTERS_ALLOWED
from metadata.namespaces import NamespaceTable, NamespaceUses, namespaces_of, reserved_bytes
from metadata.stream_config import StreamConfig
from metadata.tickets import SECRET_BYTES, TicketKey

TICKET_KEYS_MAX: Final = 2
"""The newest signs; with the other one tickets are still good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredNode:
    """A node as it last registered; ``host`` and ``port`` serve the socket protocol."""

    node_id: NodeId
    node_epoch: NodeEpoch
    directory: str
    host: str
    port: int
    http_port: int | None
    version: str
    peer_host: str | None = None
    peer_port: int | None = None
    """Where other nodes reach it; None: it is alone."""
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class InSyncReplica:
    """A member of an ISR: a node together with the data directory that held the records.

    A node that comes back with another directory is another replica, whatever it is called.
    """

    node_id: NodeId
    directory: str


@dataclass(frozen=True, slots=True)
class UncleanElection:
    """A reign that began on a log that was not in sync: what only the ISR before had is lost.

    From where that reign begins in the log, records with an ack may be missing.
    """

    leader: NodeId
    leader_epoch: LeaderEpoch
    at: TimestampUs | None
    """By the clock of the proposer."""
    given_up: tuple[NodeId, ...]
    """The ISR before; its members have all that was committed, as far as their disks still do."""


@dataclass(frozen=True, slots=True)
class TierMark:
    """How far a stream is in the object store: records below ``end`` were read back from there, verified."""

    version: int
    """One more with every change, which names it: compare-and-set."""
    start: Offset
    """The stream's first offset; objects that lie wholly below it are to be deleted."""
    end: Offset
    last_epoch: LeaderEpoch = LeaderEpoch(0)  # noqa: RUF009 - a number
    """Leader epoch of the last record below ``end``; 0: there is none."""
    last_txid: int | None = None
    """The last transaction id in the store; None: there is none."""
    manifest: str | None = None
    """The object that lists the segments; None: there are none."""


@dataclass(frozen=True, slots=True)
class TxidSet:
    """A last txid that an operator has said: records before that place in the log do not count.

    Those of an earlier reign do not, wherever they are: an unclean election may have made the log shorter.
    """

    leader_epoch: LeaderEpoch
    offset: Offset
    txid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A stream: its configuration, its replicas and its leader."""

    config: StreamConfig
    incarnation: Incarnation
    created: TimestampUs
    replicas: tuple[NodeId, ...]
    leader: NodeId | None
    """None: nobody, until the next election."""
    leader_epoch: LeaderEpoch
    """Of the present reign, or of the last one while there is no leader."""
    isr: tuple[InSyncReplica, ...]
    isr_version: int
    target: tuple[NodeId, ...] | None = None
    """The replicas once all of these are in sync; None: no reassignment is under way."""
    departed: tuple[NodeId, ...] = ()
    """Nodes that ceased to hold the stream in this reign; their messages may still be under way."""
    read_replicas: tuple[NodeId, ...] = ()
    """They follow and serve reads, but are never in the ISR, and lead only if an operator says so."""
    blank: tuple[NodeId, ...] = ()
    """Replicas that were never in sync with what is on their disks now: they may hold nothing. The last
    member of the ISR, if blank, has lost what no other node has for certain."""
    unsynced: tuple[NodeId, ...] = ()
    """Nodes that may count records that they have not forced to disk, though ``sync`` is ``always``: it was
    not when they started."""
    last_unclean: UncleanElection | None = None
    tier: TierMark | None = None
    """None: nothing of it was ever in the object store."""
    begun: bool = True
    """A leader has said that it has a log, and so may have stored records; before, nobody can have any, and
    a replica without a log has lost nothing."""
    txid_set: TxidSet | None = None
    """None: the last txid is that of the records."""

    @property
    def name(self) -> StreamName:
        """Name, unique in the cluster."""
        return StreamName(self.config.name)

    @property
    def isr_nodes(self) -> tuple[NodeId, ...]:
        """Node ids of the ISR, in the order of ``replicas``."""
        return tuple(member.node_id for member in self.isr)

    @property
    def settled_replicas(self) -> tuple[NodeId, ...]:
        """The replicas without those that a reassignment under way has added."""
        return self.replicas[: self.config.replicas]

    @property
    def holders(self) -> tuple[NodeId, ...]:
        """All nodes that have files of the stream: replicas, then read replicas."""
        return self.replicas + self.read_replicas

    @property
    def reserved_bytes(self) -> int:
        """Bytes that it takes of its namespaces; while it is moved, the more of before and after."""
        return reserved_bytes(self.config, max(self.config.replicas, len(self.target or ())))

    def is_lost_by(self, node: NodeId) -> bool:
        """Return whether a node in the ISR has lost its log, so that none is to be begun there."""
        return node in self.blank and node in self.isr_nodes

    def is_held_by(self, member: InSyncReplica, node: RegisteredNode | None) -> bool:
        """Return whether a member of the ISR, whose node this is now, runs on its directory with its log."""
        is_registered = node is not None and node.directory == member.directory
        return is_registered and member.node_id not in self.blank

    @property
    def is_lost(self) -> bool:
        """Whether all members of the ISR have lost their logs."""
        return all(node in self.blank for node in self.isr_nodes)

    def may_lack_committed(self, last_epoch: LeaderEpoch) -> bool:
        """Return whether the leader may lack committed records of a log that ends in ``last_epoch``.

        A leader that was elected cleanly may, only where records count before they are forced to disk.
        """
        unclean = self.last_unclean
        is_parted = unclean is not None and last_epoch < unclean.leader_epoch
        return is_parted or self.config.sync is not SyncMode.ALWAYS or bool(self.unsynced)

    def is_unclean_from(self, last_epoch: LeaderEpoch) -> bool:
        """Return whether a leader whose log ends in ``last_epoch`` begins what an unclean election gave it.

        A leader that died before it began is in sync with itself and elected again, cleanly: its log is the
        same.
        """
        unclean = self.last_unclean
        return unclean is not None and unclean.leader == self.leader and last_epoch < unclean.leader_epoch


@dataclass(frozen=True, slots=True)
class Removal:
    """A deleted stream whose files ``pending`` nodes have not yet reported as removed.

    Files are removed only because a removal says so, never because a stream is missing.
    """

    name: StreamName
    incarnation: Incarnation
    pending: tuple[NodeId, ...]
    is_tiered: bool = False
    """The stream is gone and had objects in the object store, which go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRow:
    """The id of the cluster, and the numbers that an operator has chosen for it."""

    feature_level: int = 0
    """See `metadata.features`; it never falls."""
    default_replicas: int = REPLICAS_DEFAULT
    """Copies of a new stream for which nobody says how many."""
    voters_wanted: int | None = None
    """Voters that the metadata group should have; None: nobody says how many."""
    cluster_id: str | None = None
    """32 hexadecimal digits, the same for ever; None: it has none yet."""


@dataclass(slots=True, kw_only=True)
class Tables:
    """All rows; changed by the functions of this package only."""

    nodes: dict[NodeId, RegisteredNode] = field(default_factory=dict)
    streams: dict[StreamName, Stream] = field(default_factory=dict)
    removals: dict[Incarnation, Removal] = field(default_factory=dict)
    forgotten_epoch: NodeEpoch = NodeEpoch(0)  # noqa: RUF009 - a number
    """The highest node_epoch of any node that was forgotten; one that comes back begins above it, so that
    what a start of its earlier life says is never taken for its own."""
    ticket_keys: tuple[TicketKey, ...] = ()
    """The newest last; none before the first ticket."""
    cluster: ClusterRow = ClusterRow()
    incarnations: set[Incarnation] = field(default_factory=set)
    """Of live streams; derived, for K2."""
    partitions: PartitionSets = field(default_factory=PartitionSets)
    """Of partitioned streams; derived."""
    namespaces: NamespaceTable = field(default_factory=NamespaceTable)

    def put(self, stream: Stream) -> None:
        """Store a new or changed stream under its name."""
        name, before = stream.name, self.streams.get(stream.name)
        if before is None:
            assert stream.incarnation not in self.incarnations, f"K2: {stream.incarnation} of {name} is live"
            self.namespaces.uses.count(name, 1, stream.reserved_bytes)
        else:
            assert stream.incarnation == before.incarnation, f"K2: {before} is replaced by {stream}"
            epoch, version = before.leader_epoch, before.isr_version
            assert stream.leader_epoch >= epoch, f"K6: {name} goes back from leader_epoch {epoch}"
            assert stream.isr_version >= version, f"K6: {name} goes back from isr_version {version}"
            is_reign = stream.leader in (before.leader, None) or stream.leader_epoch > epoch
            assert is_reign, f"K6: {before.leader} and {stream.leader} lead {name} at {epoch}"
            if stream.reserved_bytes != before.reserved_bytes:
                self.namespaces.uses.count(name, 0, stream.reserved_bytes - before.reserved_bytes)
        self.streams[stream.name] = stream
        self.incarnations.add(stream.incarnation)
        self.partitions.add(stream.config)

    def drop(self, stream: Stream) -> None:
        """Forget a stream."""
        del self.streams[stream.name]
        self.incarnations.remove(stream.incarnation)
        self.partitions.remove(stream.config)
        self.namespaces.uses.count(stream.name, -1, -stream.reserved_bytes)

    def strike_off(self, removal: Removal, node_id: NodeId) -> None:
        """Strike a node off a removal; the last one ends it."""
        pending = tuple(node for node in removal.pending if node != node_id)
        if pending:
            self.removals[removal.incarnation] = replace(removal, pending=pending)
        else:
            del self.removals[removal.incarnation]

    def owe_removal(self, stream: Stream, nodes: tuple[NodeId, ...]) -> Removal:
        """Order these nodes, too, to remove their files of a stream's life."""
        owed = self.removals.get(stream.incarnation)
        pending = (*(owed.pending if owed is not None else ()), *nodes)
        assert pending, f"K8: no node has files of {stream.incarnation} to remove"
        is_tiered = stream.tier is not None and stream.incarnation not in self.incarnations
        removal = Removal(stream.name, stream.incarnation, pending, is_tiered)
        self.removals[stream.incarnation] = removal
        return removal

    def may_owe_removal(self, stream: Stream) -> bool:
        """Return whether a removal can be owed: it exists, or there are fewer than `REMOVALS_MAX`."""
        return stream.incarnation in self.removals or len(self.removals) < REMOVALS_MAX

    def has_log(self, stream: Stream, member: InSyncReplica) -> bool:
        """Return whether the member's node runs on the member's directory now, and has the stream's log."""
        return stream.is_held_by(member, self.nodes.get(member.node_id))

    def problems(self) -> list[str]:
        """Return every broken invariant with its number and values; empty when all is well."""
        return [
            *self._node_problems(),
            *self._stream_problems(),
            *self._removal_problems(),
            *self._partition_problems(),
            *self._ticket_key_problems(),
            *self._namespace_problems(),
            *self._cluster_problems(),
        ]

    def problems_of(self, name: StreamName) -> list[str]:
        """Return the broken invariants of one stream, if there is one of that name; O(its holders)."""
        stream = self.streams.get(name)
        return [] if stream is None else [*self._replica_problems(stream)]

    def _node_problems(self) -> Iterator[str]:
        for node_id, node in self.nodes.items():
            if node.node_id != node_id:
                yield f"K1: node {node.node_id} is stored as {node_id}"
            if node.node_epoch < 1:
                yield f"K6: node {node_id} has node_epoch {node.node_epoch}"
        for directory, count in Counter(node.directory for node in self.nodes.values()).items():
            if count > 1:
                yield f"K7: directory {directory} is registered by {count} nodes"

    def _stream_problems(self) -> Iterator[str]:
        for incarnation, count in Counter(stream.incarnation for stream in self.streams.values()).items():
            if count > 1:
                yield f"K2: incarnation {incarnation} is used {count} times"
        if self.incarnations != {stream.incarnation for stream in self.streams.values()}:
            yield "K2: the set of live incarnations differs from the streams"
        for name, stream in self.streams.items():
            if stream.name != name:
                yield f"K1: stream {stream.name} is stored as {name}"
            for problem in self._replica_problems(stream):
                yield f"{problem} (stream {name})"

    def _replica_problems(self, stream: Stream) -> Iterator[str]:
        distinct, settled, target = set(stream.replicas), stream.settled_replicas, stream.target
        added = tuple(node for node in target or () if node not in settled)
        holders = set(stream.holders)
        if len(holders) != len(stream.holders) or len(settled) != stream.config.replicas:
            yield f"K3: replicas {stream.holders}, configured {stream.config.replicas}"
        if len(stream.read_replicas) != stream.config.read_replicas:
            yield f"K3: read replicas {stream.read_replicas}, configured {stream.config.read_replicas}"
        if stream.replicas != settled + added or target == () or len(set(target or ())) != len(target or ()):
            yield f"K3: replicas {stream.replicas}, target {target}"
        removal = self.removals.get(stream.incarnation)
        if removal is not None and not holders.isdisjoint(removal.pending):
            yield f"K2: replicas {stream.holders}, to be removed from {removal.pending}"
        if not holders <= self.nodes.keys():
            yield f"K3: replicas {stream.holders} are not all registered"
        members = stream.isr_nodes
        if not members or len(set(members)) != len(members) or not set(members) <= distinct:
            yield f"K4: isr {members} of replicas {stream.replicas}"
        if stream.leader is not None and not any(
            member.node_id == stream.leader and self.has_log(stream, member) for member in stream.isr
        ):
            yield f"K5: leader {stream.leader} is not in isr {members} with its registered directory and log"
        if stream.leader_epoch < 1 or stream.isr_version < 1:
            yield f"K6: leader_epoch {stream.leader_epoch}, isr_version {stream.isr_version}"
        if stream.tier is not None and not (
            stream.tier.version >= 1 and 0 <= stream.tier.start <= stream.tier.end
        ):
            yield f"K10: {stream.tier}"

    def _partition_problems(self) -> Iterator[str]:
        kinds: dict[str, set[PartitionBy | None]] = {}
        for name, stream in self.streams.items():
            if stream.config.is_partitioned:
                yield f"K11: {name} is partitioned, and a stream"
            if stream.config.partition_of is not None:
                kinds.setdefault(stream.config.partition_of, set()).add(stream.config.partition_by)
        for partitioned, found in kinds.items():
            if StreamName(partitioned) in self.streams or len(found) > 1:
                yield f"K11: {partitioned} is a stream, or is partitioned in {len(found)} ways"
        if self.partitions != partitions_of(self.streams.values()):
            yield "K11: the sets of partitions differ from the streams"

    def _namespace_problems(self) -> Iterator[str]:
        if self.namespaces.uses != uses_of(self.streams.values()):
            yield "K12: the use of namespaces differs from the streams"
        limited = {name for name, row in self.namespaces.rows.items() if row.limits.bytes is not None}
        for name, stream in self.streams.items():
            if stream.config.retention.bytes is None and not limited.isdisjoint(namespaces_of(name)):
                yield f"K12: {name} keeps any number of bytes"

    def _removal_problems(self) -> Iterator[str]:
        for incarnation, removal in self.removals.items():
            if removal.incarnation != incarnation:
                yield f"K1: removal {removal.incarnation} is stored as {incarnation}"
            if not removal.pending or not set(removal.pending) <= self.nodes.keys():
                yield f"K8: removal {incarnation} waits for {removal.pending}"

    def _ticket_key_problems(self) -> Iterator[str]:
        keys = {key.key_id: key.secret for key in self.ticket_keys}
        if len(self.ticket_keys) > TICKET_KEYS_MAX or len(keys) < len(self.ticket_keys):
            yield f"K13: ticket keys {[key.key_id for key in self.ticket_keys]}"
        if not all(_is_secret(secret) for secret in keys.values()):
            yield f"K13: one of the ticket keys {list(keys)} is no key"

    def _cluster_problems(self) -> Iterator[str]:
        row = self.cluster
        if not 1 <= row.default_replicas <= REPLICAS_MAX:
            yield f"K14: default replicas {row.default_replicas}"
        if row.voters_wanted not in (None, *VOTERS_ALLOWED):
            yield f"K14: {row.voters_wanted} voters wanted"
        if row.cluster_id is not None and not is_cluster_id(row.cluster_id):
            yield f"K14: cluster id {row.cluster_id!r}"


def is_cluster_id(text: str) -> bool:
    """Return whether ``text`` can be the id of a cluster: 32 hexadecimal digits, in lower case."""
    return re.fullmatch("[0-9a-f]{32}", text) is not None


def _is_secret(text: str) -> bool:
    return re.fullmatch(f"[0-9a-f]{{{2 * SECRET_BYTES}}}", text) is not None


def partitions_of(streams: Iterable[Stream]) -> PartitionSets:
    """Return the partitioned streams that these make up."""
    sets = PartitionSets()
    for stream in streams:
        sets.add(stream.config)
    return sets


def uses_of(streams: Iterable[Stream]) -> NamespaceUses:
    """Return what these streams use of their namespaces."""
    uses = NamespaceUses()
    for stream in streams:
        uses.count(stream.name, 1, stream.reserved_bytes)
    return uses
