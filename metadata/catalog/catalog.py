"""The replicated state machine of the control plane.

`Catalog.apply` takes the commands of the metadata log in log order and is deterministic; a command that
cannot be is refused by a value, so that every replica refuses alike.

One thread applies. Every row is immutable and every read takes one consistent look at one table, so
other threads may read while it does; two reads may see two states.

Invariant, beside those of `metadata.catalog.tables`:
    K9: entries are applied without a gap, each once.
"""

from typing import Final, assert_never

from envelope.errors import JetstreamError
from envelope.subjects import matches
from envelope.types import LogIndex, NodeEpoch, NodeId, StreamName
from metadata.catalog.cluster import name_cluster, rotate_ticket_key, set_default_replicas, set_voters
from metadata.catalog.commands import (
    AdvanceTier,
    BeginStream,
    CancelReassignment,
    ChangeIsr,
    ChangeLeader,
    ClusterCommand,
    Command,
    ConfirmRemoval,
    CreateStream,
    DeleteStream,
    FinishReassignment,
    ForgetNode,
    LedCommand,
    LimitNamespace,
    NameCluster,
    Reassignment,
    ReassignReplicas,
    RegisterNode,
    RotateTicketKey,
    SetDefaultReplicas,
    SetFeatureLevel,
    SetTxid,
    SetVoters,
    UpdateStream,
    feature_of,
)
from metadata.catalog.events import Events, StreamEvent, refused_by
from metadata.catalog.leadership import begin_stream, change_isr, change_leader, due_elections
from metadata.catalog.marks import advance_tier, set_txid
from metadata.catalog.namespaces import limit_namespace
from metadata.catalog.nodes import forget_node, level_refusal, register_node, set_feature_level
from metadata.catalog.reassignment import reassign
from metadata.catalog.streams import (
    confirm_removal,
    create_stream,
    delete_stream,
    update_stream,
)
from metadata.catalog.tables import ClusterRow, RegisteredNode, Removal, Stream, Tables
from metadata.features import LATEST_LEVEL, lacking
from metadata.namespaces import NamespaceTable
from metadata.stream_config import partition_name
from metadata.tickets import TicketKey

NO_INDEX: Final = LogIndex(0)
"""Before the first entry."""


class Catalog:
    """Nodes, streams and owed removals as of one index of the metadata log."""

    __slots__ = ("_applied", "_tables")

    def __init__(self, tables: Tables | None = None, applied: LogIndex = NO_INDEX) -> None:
        self._tables = tables if tables is not None else Tables()
        self._applied = applied

    @property
    def applied(self) -> LogIndex:
        """Index of the last applied entry; 0 before the first."""
        return self._applied

    def apply(self, index: LogIndex, command: Command) -> Events:
        """Apply the command of entry ``index``; the first event answers its proposer.

        Raises:
            UnsupportedFeatureLevel: the cluster is at a level now that this node cannot: it is to stop.
        """
        self.skip(index)
        error = feature_refusal(self, command)
        events = _decide(self._tables, command) if error is None else refused_by(error)
        assert events, f"every command has an answer: {command}"
        for name in {event.stream.name for event in events if isinstance(event, StreamEvent)}:
            problems = self._tables.problems_of(name)
            assert not problems, f"{'; '.join(problems)} after {command}"
        return events

    def skip(self, index: LogIndex) -> None:
        """Record that entry ``index`` changes nothing: a leader's first of a term, or a repeated command."""
        assert index == self._applied + 1, f"K9: entry {index} after {self._applied}"
        self._applied = index

    def become(self, other: "Catalog") -> None:
        """Take over the rows of ``other``, which is given up; readers of this catalogue go on with them."""
        self._tables, self._applied = other._tables, other._applied  # noqa: SLF001 - its own class

    def stream(self, name: StreamName) -> Stream | None:
        """Return the stream of that name."""
        return self._tables.streams.get(name)

    def streams(self) -> tuple[Stream, ...]:
        """Return all streams, ordered by name."""
        return tuple(sorted(self._tables.streams.values(), key=lambda stream: stream.name))

    def partitions_of(self, partitioned: str) -> int:
        """Return how many partitions share a partitioned stream's messages; 0 while they are not all there.

        They are the first so many of `partition_rows`. O(1).
        """
        return self._tables.partitions.count(partitioned)

    def is_partitioned(self, name: str) -> bool:
        """Return whether a partitioned stream of that name exists, with all or some of its partitions."""
        return name in self._tables.partitions

    def partition_rows(self, partitioned: str) -> tuple[Stream, ...]:
        """Return the partitions that there are of a partitioned stream, by number; empty: there is none."""
        names = (
            partition_name(partitioned, number) for number in self._tables.partitions.numbers(partitioned)
        )
        found = (self._tables.streams.get(name) for name in names)
        return tuple(row for row in found if row is not None)

    def count_streams(self) -> int:
        """Return how many streams there are."""
        return len(self._tables.streams)

    def node(self, node_id: NodeId) -> RegisteredNode | None:
        """Return the node of that id."""
        return self._tables.nodes.get(node_id)

    def nodes(self) -> tuple[RegisteredNode, ...]:
        """Return all nodes that ever registered, ordered by id."""
        return tuple(sorted(self._tables.nodes.values(), key=lambda node: node.node_id))

    @property
    def forgotten_epoch(self) -> NodeEpoch:
        """The highest node_epoch of any node that was forgotten."""
        return self._tables.forgotten_epoch

    @property
    def ticket_keys(self) -> tuple[TicketKey, ...]:
        """The keys that prove tickets; the last one signs new ones."""
        return self._tables.ticket_keys

    @property
    def cluster(self) -> ClusterRow:
        """The id of the cluster, and the numbers that an operator has chosen for it."""
        return self._tables.cluster

    def removals(self, node_id: NodeId | None = None) -> tuple[Removal, ...]:
        """Return the owed removals (of one node), ordered by incarnation."""
        owed = tuple(self._tables.removals.values())
        return tuple(
            sorted(
                (removal for removal in owed if node_id is None or node_id in removal.pending),
                key=lambda removal: removal.incarnation,
            )
        )

    @property
    def namespaces(self) -> NamespaceTable:
        """The limits of namespaces, and their use."""
        return self._tables.namespaces

    def due_elections(self) -> tuple[ChangeLeader, ...]:
        """Return the commands that elect a leader wherever one is missing and one is possible."""
        return due_elections(self._tables)

    def audit(self) -> None:
        """Assert K1 to K8 and K10 to K14 over everything; O(streams), for tests and simulation."""
        problems = self._tables.problems()
        assert not problems, "; ".join(problems)


def feature_refusal(catalog: Catalog, command: Command) -> JetstreamError | None:
    """Return why there may be nodes that cannot read a command; None: it may be an entry of the log.

    The entry that raises the level is one itself that nodes of level 0 cannot read. The first node of a
    cluster brings its level.
    """
    level = catalog.cluster.feature_level
    if isinstance(command, SetFeatureLevel):
        return level_refusal(catalog.nodes(), level, command)
    feature = feature_of(command)
    if feature is None or (isinstance(command, RegisterNode) and not catalog.nodes()):
        return None
    return lacking(feature, level)


def registered_level(catalog: Catalog) -> int | None:
    """Return the feature level that a node names when it registers, None where nodes cannot read it."""
    return LATEST_LEVEL if catalog.cluster.feature_level or not catalog.nodes() else None


def streams_of(catalog: Catalog, subject: str) -> tuple[Stream, ...]:
    """Return the streams that bind the literal ``subject``, ordered by name; looks at every stream."""
    return tuple(stream for stream in catalog.streams() if matches(stream.config.subject, subject))


def _decide(tables: Tables, command: Command) -> Events:
    match command:
        case RegisterNode():
            return register_node(tables, command)
        case CreateStream():
            return create_stream(tables, command)
        case UpdateStream():
            return update_stream(tables, command)
        case DeleteStream():
            return delete_stream(tables, command)
        case BeginStream():
            return begin_stream(tables, command)
        case _:
            return _decide_rarer(tables, command)


def _decide_rarer(
    tables: Tables,
    command: ConfirmRemoval | LedCommand | ForgetNode | Reassignment | ClusterCommand,
) -> Events:
    match command:
        case (
            LimitNamespace()
            | RotateTicketKey()
            | SetDefaultReplicas()
            | SetVoters()
            | NameCluster()
            | SetFeatureLevel()
        ):
            return _decide_of_cluster(tables, command)
        case ForgetNode():
            return forget_node(tables, command)
        case ReassignReplicas() | FinishReassignment() | CancelReassignment():
            return reassign(tables, command)
        case ConfirmRemoval():
            return confirm_removal(tables, command)
        case _:
            return _decide_led(tables, command)


def _decide_of_cluster(tables: Tables, command: ClusterCommand) -> Events:
    match command:
        case LimitNamespace():
            return limit_namespace(tables, command)
        case RotateTicketKey():
            return rotate_ticket_key(tables, command)
        case SetDefaultReplicas():
            return set_default_replicas(tables, command)
        case SetVoters():
            return set_voters(tables, command)
        case NameCluster():
            return name_cluster(tables, command)
        case SetFeatureLevel():
            return set_feature_level(tables, command)
        case _:
            assert_never(command)


def _decide_led(tables: Tables, command: LedCommand) -> Events:
    match command:
        case ChangeLeader():
            return change_leader(tables, command)
        case ChangeIsr():
            return change_isr(tables, command)
        case AdvanceTier():
            return advance_tier(tables, command)
        case SetTxid():
            return set_txid(tables, command)
        case _:
            assert_never(command)
