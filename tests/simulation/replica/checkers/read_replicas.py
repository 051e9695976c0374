"""A read replica is never in sync, never leads and never counts; who ceases to hold a stream removes it.

What it has, and lets readers see, is judged as that of every other follower.
"""

from collections.abc import Collection, Iterable

from envelope.types import NodeId, StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import ChangeLeader, NodeAtEpoch
from metadata.catalog.tables import Stream
from tests.simulation.replica.log_image import LogImage
from tests.simulation.violation import Violation


class ReadReplicas:
    """Compares every row of the catalogue with the one before."""

    def __init__(self) -> None:
        self._rows: dict[StreamName, Stream] = {}

    def changed(self, name: StreamName, catalog: Catalog) -> None:
        """The catalogue has applied a command."""
        stream, before = catalog.stream(name), self._rows.get(name)
        if stream is None or stream is before:
            return
        self._rows[name] = stream
        check_roles(stream)
        if before is None or before.incarnation != stream.incarnation:
            return
        owing = {removal.incarnation: removal.pending for removal in catalog.removals()}
        check_left(before, stream, owing.get(stream.incarnation, ()))
        check_leader(before, stream)


def check_roles(stream: Stream) -> None:
    """Check that no read replica is anything else."""
    for role, nodes in (
        ("a replica", stream.replicas),
        ("in the ISR", stream.isr_nodes),
        ("the leader", (stream.leader,)),
    ):
        both = [node for node in stream.read_replicas if node in nodes]
        if both:
            raise Violation(f"read replica {both[0]} of {stream.name} is {role} (v{stream.isr_version})")


def check_left(before: Stream, after: Stream, owing: Collection[NodeId]) -> None:
    """Check that who has left has to remove its files: nothing else removes them."""
    for node in before.holders:
        if node not in after.holders and node not in owing:
            raise Violation(f"{node} holds {after.name} no more, and need not remove it")


def check_leader(before: Stream, after: Stream) -> None:
    """Check that no read replica was elected, but where an operator may have wanted that."""
    unclean = after.last_unclean is not None and after.last_unclean.leader_epoch == after.leader_epoch
    if after.leader in before.read_replicas and not unclean:
        raise Violation(f"read replica {after.leader} of {after.name} is elected (e{after.leader_epoch})")


def check_election(stream: Stream, command: ChangeLeader) -> None:
    """Check whom the controller wants to elect by itself, cleanly or not."""
    if command.leader in stream.read_replicas:
        raise Violation(f"the controller elects {command.leader}, a read replica of {stream.name}")


def check_proposal(known: Stream, isr: Iterable[NodeAtEpoch]) -> None:
    """Check the ISR that a leader proposes, by the row that it knows."""
    named = [member.node_id for member in isr if member.node_id in known.read_replicas]
    if named:
        raise Violation(f"{known.leader} proposes {named[0]}, a read replica of {known.name}, as in sync")


def without(apart: Collection[NodeId], logs: Iterable[tuple[str, LogImage]]) -> list[tuple[str, LogImage]]:
    """Return the logs, each with its directory, that are on no disk of these nodes, present or former."""
    return [(directory, log) for directory, log in logs if node_of(directory) not in apart]


def node_of(directory: str) -> NodeId:
    """Return whose disk a data directory is; see `tests.simulation.replica.node`."""
    return NodeId(directory.rpartition("-of-")[2])
