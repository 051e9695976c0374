"""The one port at which a node lets other nodes in, by their purpose.

Each purpose decides which peers may come: voters for the messages of the group, nodes without a vote to
observe it, the nodes of the catalogue for replication. Cluster, token and certificate are the same for all.
"""

import asyncio
import contextlib
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from envelope.errors import RemoteProtocolError
from envelope.types import NodeId
from metadata.features import too_old
from metadata.members import node_of
from metadata.node.admission.descriptors import DescriptorShare
from metadata.node.admission.door import Door
from metadata.node.peers.accepting import StreamServer
from metadata.node.peers.dialling import (
    GREETING_BYTES_MAX,
    GREETING_SECONDS,
    PROTOCOL_VERSION,
    Callers,
    Conversation,
    Greeting,
    PeerIdentity,
    Welcome,
    converse,
)

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 1024
"""Of other nodes, of which each has one for every purpose."""


@dataclass(frozen=True, slots=True)
class PeerRefusal:
    """Why a peer is not let in."""

    problem: str
    later: bool = False
    """This may change by itself: the peer is to come again."""
    too_old: bool = False
    """The peer can less than the cluster's feature level."""


Objection = Callable[[NodeId], PeerRefusal | None]
"""Says whether a node may come for a purpose, now; None lets it in."""


@dataclass(frozen=True, slots=True)
class _Service:
    conversation: Conversation
    objection: Objection
    known_as: NodeId


class PeerServer:
    """Lets peers in; see the module.

    Attributes:
        callers: get the peers that were let in.
        door: decides about admission before the greeting.
        cluster_level: returns the cluster's feature level, as far as it is known here.

    Invariant:
        V1: a connection is handed on only if its greeting named this node, this cluster and the token, and a
            source to which its purpose has no objection.
            Held by test_who_is_not_a_voter_of_this_cluster_is_told_why_and_not_heard.
    """

    def __init__(self, identity: PeerIdentity) -> None:
        """Prepare to be dialled as ``identity``."""
        self.callers = Callers()
        self.cluster_level: Callable[[], int] = lambda: 0
        self._identity = identity
        self._levels: dict[asyncio.StreamWriter, tuple[NodeId, int]] = {}
        self._served: dict[str, _Service] = {}
        self.door = Door("peers", DescriptorShare.NODE, CONNECTIONS_MAX)
        self._server = StreamServer(
            self._talk, limit=GREETING_BYTES_MAX, tls=identity.server_tls, door=self.door
        )

    @property
    def feature_levels(self) -> dict[NodeId, int]:
        """The highest feature level that each connected peer can."""
        return dict(self._levels.values())

    @contextlib.contextmanager
    def serve(
        self,
        purpose: str,
        conversation: Conversation,
        objection: Objection,
        known_as: NodeId | None = None,
    ) -> Iterator[None]:
        """Let peers in for ``purpose``, for the block; before and after it they are asked to come later.

        Args:
            purpose: as in the greeting.
            conversation: gets the connections.
            objection: is asked about every peer that comes.
            known_as: whom peers have to ask for; None: for the node.
        """
        assert purpose not in self._served, f"{purpose} is served already"
        self._served[purpose] = _Service(conversation, objection, known_as or self._identity.node_id)
        try:
            yield
        finally:
            del self._served[purpose]

    @contextlib.asynccontextmanager
    async def listening(self, at: socket.socket) -> AsyncIterator[None]:
        """Let peers in for the block; then close every connection that they have made.

        Raises:
            OSError: the socket cannot be listened on.
        """
        at.listen()
        self._server.start(at)
        try:
            yield
        finally:
            await self._server.stop()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            greeting = await self._greeted(reader, writer)
            service = None if greeting is None else self._served.get(greeting.purpose)
            if greeting is not None and service is not None:  # it may have ended while the answer was sent
                self._server.introduced()
                source = NodeId(greeting.source)
                self._levels[writer] = node_of(source), greeting.feature_level
                self.callers.came(source)
                await converse(service.conversation(source, reader, writer), writer, source)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.debug("an incoming connection broke error=%r", error)
        except RemoteProtocolError as error:
            _log.warning("an incoming connection is closed: %s", error)
        finally:
            self._levels.pop(writer, None)

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Greeting | None:
        """Return the greeting of the dialling peer, None if it was turned away."""
        async with asyncio.timeout(GREETING_SECONDS):
            line = await reader.readuntil(b"\n")
        try:
            greeting = Greeting.model_validate_json(line)
        except ValidationError as error:
            raise RemoteProtocolError(f"a greeting that is none: {error.error_count()} faults") from None
        refusal = self._refusal(greeting)
        welcome = Welcome()
        if refusal is not None:
            welcome = Welcome(error=refusal.problem, later=refusal.later, too_old=refusal.too_old)
        writer.write(welcome.model_dump_json(exclude_defaults=True).encode() + b"\n")
        await writer.drain()
        if refusal is None:
            return greeting
        level = logging.DEBUG if refusal.later else logging.WARNING
        _log.log(level, "peer=%r is turned away: %s", greeting.source, refusal.problem)
        return None

    def _refusal(self, greeting: Greeting) -> PeerRefusal | None:
        """Return why a peer with this greeting is not let in; the token is checked first (V1)."""
        identity = self._identity
        if identity.token is not None:
            wanted = identity.token.get_secret_value().encode()
            if not hmac.compare_digest((greeting.token or "").encode(), wanted):
                return PeerRefusal("the token is not right")
        problem = self._mismatch(greeting)
        if problem is not None:
            return PeerRefusal(problem)
        error = too_old(greeting.feature_level, self.cluster_level())
        if error is not None:
            return PeerRefusal(error.description, too_old=True)
        return self._objection(greeting)

    def _objection(self, greeting: Greeting) -> PeerRefusal | None:
        service = self._served.get(greeting.purpose)
        if service is None:
            return PeerRefusal(f"{greeting.purpose} is not served here now", later=True)
        if greeting.target != service.known_as:
            return PeerRefusal(f"this is {service.known_as}, not {greeting.target}", later=True)
        return service.objection(NodeId(greeting.source))

    def _mismatch(self, greeting: Greeting) -> str | None:
        """Return why this is not what a peer looks for, None if it is."""
        identity = self._identity
        if greeting.protocol != PROTOCOL_VERSION:
            return f"protocol {greeting.protocol} is not {PROTOCOL_VERSION}"
        if greeting.cluster != identity.cluster:
            return f"this is cluster {identity.cluster}, not {greeting.cluster}"
        if node_of(NodeId(greeting.target)) != identity.node_id:
            return f"this is {identity.node_id}, not {greeting.target}"
        return None
