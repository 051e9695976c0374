"""The request that has a node lead although it is not in sync: an operator's last means."""

import logging
from collections.abc import Awaitable, Callable

from envelope.errors import InternalError
from envelope.types import NodeId, StreamName
from metadata.api.requests import ElectLeaderRequest
from metadata.api.responses import ElectLeaderResponse
from metadata.catalog.commands import ChangeLeader, Command
from metadata.catalog.events import Event, LeaderChanged

_log = logging.getLogger(__name__)

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
