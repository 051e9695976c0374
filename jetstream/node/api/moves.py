"""The requests that move replicas: to named nodes, off a node, or to wherever they are spread best.

The leader of the metadata log plans, as it knows which nodes are alive. The answer comes once the moves are
in the catalogue; they go on by themselves, also if this node stops.

`elect` is the operator's last means: it makes a replica lead that is not in sync.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, assert_never

from envelope.errors import (
    InternalError,
    NodeInUse,
    NotLeader,
    RemovalPending,
    UnknownNode,
    UnknownStream,
)
from envelope.types import NodeId, StreamName
from metadata.api.move_responses import ElectLeaderResponse, MovesResponse, RemoveNodeResponse, ReplicaMove
from metadata.api.requests import (
    DrainNodeRequest,
    ElectLeaderRequest,
    ReassignStreamRequest,
    RebalanceRequest,
    RemoveNodeRequest,
)
from metadata.catalog.commands import (
    CancelReassignment,
    ChangeLeader,
    Command,
    ForgetNode,
    ReassignReplicas,
    UpdateStream,
)
from metadata.catalog.events import Event, LeaderChanged, ReplicasReassigned
from metadata.catalog.tables import Stream
from metadata.controller.settings import VOTER_HEARD_NS
from metadata.limits import LIST_PAGE_MAX
from metadata.members import node_of
from metadata.node.catalogue.group import MetadataQuorum
from metadata.node.timers.movable_timer import now
from metadata.rebalancing import PlannedMove, emptied, evened_out, planned

_log = logging.getLogger(__name__)

_PROPOSED_AT_ONCE: Final = 64
_LOOK_SECONDS: Final = 0.05
_REMOVAL_LOOKS: Final = 40

OrderedElection = Callable[[StreamName, NodeId], ChangeLeader]
"""Returns the command that has a node lead a stream that is offline; raises the typed refusal."""


async def elect(
    request: ElectLeaderRequest,
    ordered_election: OrderedElection,
    propose: Callable[[Command], Awaitable[Event]],
) -> ElectLeaderResponse:
    """Elect the node, whatever it holds; returns when it is in the catalogue.

    Raises:
        NotLeader: this node does not lead the metadata log, and cannot tell who is dead.
        JetstreamError: the typed refusal; nobody was elected.
    """
    command = ordered_election(StreamName(request.name), NodeId(request.node))
    event = await propose(command)
    if not isinstance(event, LeaderChanged):
        raise InternalError(f"election answered by {type(event).__name__}")
    row = event.stream
    given_up = () if row.last_unclean is None else row.last_unclean.given_up
    _log.warning(
        "an operator has elected uncleanly stream=%s leader=%s leader_epoch=%d runbook=RB-10",
        row.name,
        row.leader,
        row.leader_epoch,
    )
    return ElectLeaderResponse(
        name=row.name, leader=request.node, leader_epoch=row.leader_epoch, given_up=list(given_up)
    )


MovingRequest = ReassignStreamRequest | DrainNodeRequest | RebalanceRequest | RemoveNodeRequest


class Reassigning:
    """Answers them; used on the loop's thread."""

    def __init__(self, metadata: MetadataQuorum, alive: Callable[[], frozenset[NodeId] | None]) -> None:
        """Prepare.

        Args:
            metadata: plans are made from its catalogue and proposed to it.
            alive: the nodes that can take a replica; None if this node does not know.
        """
        self._metadata = metadata
        self._catalog = metadata.catalog
        self._alive = alive

    async def answer(self, request: MovingRequest) -> MovesResponse | RemoveNodeResponse:
        """Do what ``request`` asks; returns when it is in the catalogue.

        Raises:
            JetstreamError: the typed refusal, to be sent instead.
        """
        match request:
            case ReassignStreamRequest():
                return await self._reassign(request)
            case DrainNodeRequest(node=node):
                return await self._drain(NodeId(node))
            case RebalanceRequest(dry_run=dry_run):
                moves = evened_out(self._catalog.streams(), self._racks())
                return _answer(moves) if dry_run else await self._move(moves)
            case RemoveNodeRequest(node=node):
                return await self._remove(NodeId(node))
            case _:
                assert_never(request)

    async def _reassign(self, request: ReassignStreamRequest) -> MovesResponse:
        row = self._known(request.name)
        if request.cancel:
            command: ReassignReplicas | CancelReassignment = CancelReassignment(row.name, row.incarnation)
        else:
            command = ReassignReplicas(
                row.name,
                row.incarnation,
                _named(request.replicas) or planned(row),
                _named(request.read_replicas),
            )
        return _answer([await self._propose(command)])

    async def _drain(self, node: NodeId) -> MovesResponse:
        if self._catalog.node(node) is None:
            raise UnknownNode(f"node {node!r} is not registered", node_id=node)
        return await self._move(emptied(node, self._catalog.streams(), self._racks()))

    async def _remove(self, node: NodeId) -> RemoveNodeResponse:
        if node in self._metadata.voters:
            self._refuse_voter_in_use(node)
        (await self._metadata.propose(ForgetNode(node))).answer()
        _log.info("node forgotten node=%s", node)
        return RemoveNodeResponse(node=node)

    def _refuse_voter_in_use(self, node: NodeId) -> None:
        """Refuse to remove a voter that is alive.

        Raises:
            NodeInUse: it is, or may be: a leader hears nobody in its first moment.
            NotLeader: this node cannot tell.
        """
        quorum = self._metadata.member.membership()
        if quorum is None:
            raise NotLeader("only who leads the metadata log can say which voters are alive")
        members = [voter for voter in quorum.configuration.electorate if node_of(voter) == node]
        is_heard = any(quorum.is_heard(member, now(), VOTER_HEARD_NS) for member in members)
        if is_heard or node in (self._alive() or ()):
            raise NodeInUse(
                f"node {node!r} is a voter of the metadata log, and alive: stop it, then remove it",
                node_id=node,
            )

    async def _move(self, moves: Sequence[PlannedMove]) -> MovesResponse:
        for first in range(0, len(moves), _PROPOSED_AT_ONCE):
            some = moves[first : first + _PROPOSED_AT_ONCE]
            await asyncio.gather(*(self._propose(self._command(move)) for move in some))
        return _answer(moves)

    def _command(self, move: PlannedMove) -> ReassignReplicas:
        life = self._known(move.stream).incarnation
        return ReassignReplicas(move.stream, life, move.after, move.read_after)

    async def _propose(self, command: ReassignReplicas | CancelReassignment) -> PlannedMove:
        event = await self.accepted(command)
        if not isinstance(event, ReplicasReassigned):
            raise InternalError(f"reassignment answered by {type(event).__name__}")
        before, after = event.before, event.stream
        move = PlannedMove(
            after.name, planned(before), planned(after), before.read_replicas, after.read_replicas
        )
        _log.info(
            "stream moving stream=%s before=%s after=%s read_replicas=%s",
            move.stream,
            move.before,
            move.after,
            move.read_after,
        )
        return move

    async def accepted(self, command: ReassignReplicas | CancelReassignment | UpdateStream) -> Event:
        """Propose, and again for a while if a node has just lost the replica that it is to have again.

        Raises:
            JetstreamError: the typed refusal.
        """
        for _ in range(_REMOVAL_LOOKS):
            try:
                return (await self._metadata.propose(command)).answer()
            except RemovalPending as error:
                _log.debug("waiting for a removal stream=%s error=%s", command.stream, error)
            await asyncio.sleep(_LOOK_SECONDS)
        return (await self._metadata.propose(command)).answer()

    def _known(self, name: str) -> Stream:
        row = self._catalog.stream(StreamName(name))
        if row is None:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return row

    def _racks(self) -> dict[NodeId, str | None]:
        """Return the nodes that can take a replica, with their racks.

        Raises:
            NotLeader: this node cannot tell.
        """
        alive = self._alive()
        if alive is None:
            raise NotLeader("only who leads the metadata log can say where replicas may go")
        return {node.node_id: node.rack for node in self._catalog.nodes() if node.node_id in alive}


def _answer(moves: Sequence[PlannedMove]) -> MovesResponse:
    listed = [
        ReplicaMove(
            stream=move.stream,
            before=list(move.before),
            after=list(move.after),
            read_replicas_before=list(move.read_before),
            read_replicas_after=list(move.read_after),
        )
        for move in moves[:LIST_PAGE_MAX]
    ]
    return MovesResponse(moves=listed, total=len(moves))


def _named(nodes: Sequence[str] | None) -> tuple[NodeId, ...] | None:
    return None if nodes is None else tuple(NodeId(node) for node in nodes)
