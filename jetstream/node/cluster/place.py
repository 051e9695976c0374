"""With which part a node begins in the metadata group, from its directory and its settings."""

from dataclasses import dataclass
from typing import NoReturn

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from jetstream.node.cluster.member_record import MemberRecord
from metadata.members import member_name, node_of
from metadata.node.members.changing_member import AsObserver, AsVoter


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceSettings:
    """The settings that a place depends on.

    Attributes:
        node_id: of the node.
        directory: identity of its data directory.
        is_reachable: other nodes can dial it; else it is alone for ever.
        voters: the nodes with which the cluster begins, or began; none: one of them is told to begin it.
    """

    node_id: NodeId
    directory: str
    is_reachable: bool
    voters: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class OldLog:
    """A metadata log that is not blank, of a node that keeps no record of its place.

    Attributes:
        was_reachable: by the node's last registration; None: it is not registered.
    """

    was_reachable: bool | None


def place_of(
    settings: PlaceSettings, record: MemberRecord, log: OldLog | None
) -> AsVoter | AsObserver | None:
    """Return the part to begin with; None: that is to be asked of other nodes.

    Raises:
        InvalidConfig: the directory is that of another node, or contradicts the settings.
    """
    node_id, voters = settings.node_id, settings.voters
    if record.member is not None:
        if node_of(record.member) != node_id:
            _refuse(settings, f"has the directory of node {node_of(record.member)}")
        if record.is_reachable and not settings.is_reachable:
            _refuse(settings, "may be one of several: it cannot go on without its [peers]")
        return AsVoter(record.member, frozenset(record.founders))
    if log is not None:
        return AsVoter(node_id, _founders_of_old(settings, log))
    if not settings.is_reachable:
        return alone(settings)
    if node_id in voters:
        return AsVoter(node_id, voters)
    return AsObserver(voters) if voters else None


def alone(settings: PlaceSettings) -> AsVoter:
    """Return the part of the only voter of a new group."""
    name = member_name(settings.node_id, settings.directory)
    return AsVoter(name, frozenset((name,)))


def _founders_of_old(settings: PlaceSettings, log: OldLog) -> frozenset[NodeId]:
    """Return with whom a group began whose log a node has written before it kept a record of that."""
    node_id, voters = settings.node_id, settings.voters
    if node_id not in voters and (voters or log.was_reachable):
        _refuse(settings, "was a voter, and is none of peers.voters now: name those that it was with")
    if voters and log.was_reachable is False:
        _refuse(settings, "was alone, and is not one of several peers.voters: leave them out, others join it")
    return voters or frozenset((node_id,))


def _refuse(settings: PlaceSettings, problem: str) -> NoReturn:
    raise InvalidConfig(f"node {settings.node_id} {problem}", field="peers.voters")
