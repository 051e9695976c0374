"""Who is elected without being in sync: only where that is permitted, once nobody else can lead, and loudly.

Judged when a controller decides, from what the metadata group was told until then, and when the catalogue has
applied it. What only the former ISR had may be lost; what the elected log shares with it may not.
"""

from collections.abc import Callable, Mapping

from envelope.types import LeaderEpoch, MonotonicNs, NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeLeader, Command, RegisterNode
from metadata.catalog.tables import InSyncReplica, Stream
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation

_NEVER = MonotonicNs(-(1 << 62))


class Elections:
    """What the metadata group was told of nodes in the present term, and which directories were in sync.

    Attributes:
        left: how long the lease of a node's process still lasts, in ns of its own clock.
    """

    def __init__(self, lease_ns: int, tolerance: int) -> None:
        """Allow ``tolerance`` ns, as clocks run at different rates."""
        self._lease_ns, self._tolerance = lease_ns, tolerance
        self._term_began = MonotonicNs(0)
        self._heard: dict[NodeId, MonotonicNs] = {}
        self._stopping: set[NodeId] = set()
        self._rows: dict[StreamName, Stream] = {}
        self._in_sync: dict[StreamName, set[tuple[NodeId, str]]] = {}
        self._decided: set[ChangeLeader] = set()
        self.left: Callable[[NodeId], int] = lambda node: 0

    # --- what the group was told ------------------------------------------------------------------------

    def term_began(self, now: MonotonicNs) -> None:
        """Another controller begins, which knows nothing of who lives."""
        self._term_began = now
        self._heard.clear()
        self._stopping.clear()

    def heard(self, node: NodeId, now: MonotonicNs) -> None:
        """The registered start of a node was heard, or has registered."""
        self._heard[node] = now

    def registered(self, node: NodeId, now: MonotonicNs) -> None:
        """Another start of a node has registered."""
        self.heard(node, now)
        self._stopping.discard(node)

    def stopping(self, node: NodeId) -> None:
        """The registered start of a node says that it is about to stop."""
        self._stopping.add(node)

    def have_been_in_sync(self, stream: Stream) -> set[tuple[NodeId, str]]:
        """Return the replicas that were in sync since each became one, and since it has its directory."""
        return self._in_sync.get(stream.name, set())

    # --- what was decided -------------------------------------------------------------------------------

    def decided(self, catalog: Catalog, command: ChangeLeader, now: MonotonicNs, *, ordered: bool) -> None:
        """A controller wants this leader; ``ordered``: because an operator named it."""
        row = catalog.stream(command.stream)
        if row is None or not command.unclean:
            return
        for member in row.isr:
            self._check_dead(catalog, row, member, now)
        if ordered:
            self._decided.add(command)
            return
        if not row.config.unclean_election:
            raise Violation(f"{command.leader} is to lead {row.name} uncleanly, which does not permit it")
        able = [node for node in row.replicas if self._is_able(catalog, row, node, now)]
        if able[:1] != [command.leader]:
            raise Violation(f"{command.leader} is to lead {row.name} uncleanly; those who can are {able}")
        self._decided.add(command)

    def _check_dead(self, catalog: Catalog, row: Stream, member: InSyncReplica, now: MonotonicNs) -> None:
        if not _has_log(catalog, row, member):
            return
        name = member.node_id
        ends = max(self._heard.get(name, _NEVER), self._term_began) + self._lease_ns
        left = max(ends - now, self.left(name) - self._tolerance)
        if left > 0:
            raise Violation(
                f"another than the ISR is to lead {row.name} (e{row.leader_epoch}), and the lease of {name}, "
                f"in it with its disk, lasts another {left / 1e6:.3f} ms"
            )

    def _is_able(self, catalog: Catalog, row: Stream, node: NodeId, now: MonotonicNs) -> bool:
        registered = catalog.node(node)
        return (
            registered is not None
            and node not in self._stopping
            and now < self._heard.get(node, _NEVER) + self._lease_ns
            and (node, registered.directory) in self.have_been_in_sync(row)
        )

    # --- what the catalogue has applied -----------------------------------------------------------------

    def begun(self, catalog: Catalog) -> None:
        """The catalogue begins with these streams."""
        for row in catalog.streams():
            self._remember(row)

    def applied(
        self,
        catalog: Catalog,
        command: Command,
        truths: Mapping[StreamName, Truths],
        images: Mapping[StreamName, Mapping[str, LogImage]],
    ) -> None:
        """The catalogue has applied a command, and it alone."""
        if isinstance(command, RegisterNode):
            for stream in catalog.streams():
                if stream.incarnation in command.lost:
                    self._in_sync[stream.name].discard((command.node_id, command.directory))
            # A process that was replaced may be heard after the one on the new disk: it is not there.
            for known in self._in_sync.values():
                known.difference_update(
                    [
                        found
                        for found in known
                        if found[0] == command.node_id and found[1] != command.directory
                    ]
                )
        elif isinstance(command, ChangeLeader):
            before, row = self._rows.get(command.stream), catalog.stream(command.stream)
            if before is not None and row is not None and row.leader_epoch > before.leader_epoch:
                self._elected(catalog, command, before, row)
                if not _was_in_sync(catalog, before, command.leader):
                    _part(row, truths[row.name], images[row.name][row.isr[0].directory])
        self.begun(catalog)

    def _elected(self, catalog: Catalog, command: ChangeLeader, before: Stream, row: Stream) -> None:
        told, leader = row.last_unclean, row.leader
        if _was_in_sync(catalog, before, command.leader):
            if told != before.last_unclean:
                raise Violation(f"{leader} was in sync, and {row.name} says that it was not: {told}")
            return
        if command not in self._decided:
            raise Violation(f"{leader} leads {row.name} (e{row.leader_epoch}) uncleanly; nobody decided that")
        is_told = told is not None and (told.leader, told.leader_epoch) == (leader, row.leader_epoch)
        if told is None or not is_told or told.given_up != before.isr_nodes:
            raise Violation(
                f"{leader} leads {row.name} (e{row.leader_epoch}) instead of {before.isr_nodes}, all that "
                f"were in sync, and it says {told}"
            )
        if row.isr_nodes != (leader,):
            raise Violation(f"{leader} leads {row.name} uncleanly, and {row.isr_nodes} are in sync with it")

    def _remember(self, row: Stream) -> None:
        self._rows[row.name] = row
        known = self._in_sync.setdefault(row.name, set())
        known.difference_update([found for found in known if found[0] not in row.replicas])
        known.update(
            (member.node_id, member.directory) for member in row.isr if member.node_id not in row.blank
        )


def _has_log(catalog: Catalog, row: Stream, member: InSyncReplica) -> bool:
    node = catalog.node(member.node_id)
    return node is not None and node.directory == member.directory and member.node_id not in row.blank


def _was_in_sync(catalog: Catalog, before: Stream, leader: NodeId) -> bool:
    """Tell whether the leader was in the ISR before, with the disk that it has now."""
    return any(member.node_id == leader and _has_log(catalog, before, member) for member in before.isr)


def _part(row: Stream, truths: Truths, elected: LogImage) -> None:
    """Allow that what the elected log lacks is lost; what it has on disk as it was committed is kept."""
    kept = min(truths.newest.shared_with(elected), elected.durable_end)
    truths.part(LeaderEpoch(row.leader_epoch), kept)
