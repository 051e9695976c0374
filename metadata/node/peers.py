"""The connections between voters: each dials all others and only talks there; it hears where it was dialled.

A connection begins with one line of JSON each way: who dials whom, in which cluster, with which token. Then
come messages (`metadata.raft.wire`), from the dialling side alone. They may be lost, as Raft allows: what
cannot leave at once, because there is no connection or the peer does not read, is dropped and not queued.

A connection that breaks is dialled again at once. If that is refused, nothing listens there any more: the
peer's process is dead, which is news that a timeout would bring much later.
"""

import asyncio
import contextlib
import hmac
import logging
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from envelope.errors import JetstreamError, RemoteProtocolError, Unauthorized
from envelope.limits import KIB, MIB
from envelope.types import NodeId
from metadata.raft.wire import MessageReader, Sent, encode

_log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 1
_GREETING_BYTES_MAX: Final = 4 * KIB
_GREETING_SECONDS: Final = 5.0
_DIAL_SECONDS: Final = 2.0
_REDIAL_SECONDS_MIN: Final = 0.02
_REDIAL_SECONDS_MAX: Final = 1.0
_UNSENT_BYTES_MAX: Final = 8 * MIB
"""Beyond it a peer does not read, and messages to it are dropped; one larger message may exceed it."""
_RECEIVE_BYTES: Final = 256 * KIB
_UNANSWERED_MS: Final = 2_000
"""After so long without the peer's acknowledgement the kernel gives a connection up (TCP_USER_TIMEOUT)."""


_NO_VOTER: Final = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
"""What dialling ends with where nobody is, or somebody who speaks something else."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a voter listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who this voter is to others, and what they must know to be let in."""

    cluster: str
    node_id: NodeId
    token: SecretStr | None = None
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None


class _Greeting(BaseModel):
    """The dialling side's line."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    protocol: int
    cluster: str
    source: str
    target: str
    token: str | None = None


class _Welcome(BaseModel):
    """The answer: ``error`` says why the connection is closed."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    error: str | None = None


class Listener(Protocol):
    """Who is told what the network hears; called on the loop's thread."""

    def received(self, message: Sent) -> None:
        """Take in a message that arrived."""

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """Learn that a connection to ``peer`` broke; again, ``refused``, if nothing listens there now."""


class PeerNetwork:
    """See the module.

    Invariant:
        V1: a message is handed on only if its connection's greeting named its source, this voter, this
            cluster and the token.
    """

    def __init__(self, identity: PeerIdentity, peers: Mapping[NodeId, Address]) -> None:
        """Prepare to speak as ``identity`` with ``peers``, all other voters."""
        assert identity.node_id not in peers, "a voter does not dial itself"
        self._identity = identity
        self._peers = dict(peers)
        self._links: dict[NodeId, asyncio.StreamWriter] = {}
        self._incoming: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.dropped = 0
        """Messages that could not leave."""

    async def run(self, listening: socket.socket, listener: Listener) -> None:
        """Keep a connection to every peer, and let theirs in, until cancelled; then close everything.

        Args:
            listening: bound to this voter's address.
            listener: is told what arrives and what breaks.

        Raises:
            OSError: the socket cannot be listened on.
        """
        server = await asyncio.start_server(
            partial(self._accepted, listener),
            sock=listening,
            ssl=self._identity.server_tls,
            limit=_GREETING_BYTES_MAX,
        )
        try:
            async with asyncio.TaskGroup() as links:
                for peer, address in self._peers.items():
                    links.create_task(self._keep_link(peer, address, listener))
        finally:
            server.close()
            await self._close_incoming()

    def send(self, message: Sent) -> None:
        """Send now or never."""
        link = self._links.get(message.target)
        if link is None or link.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self.dropped += 1
        else:
            link.write(encode(message))

    # --- dialling ---------------------------------------------------------------------------------

    async def _keep_link(self, peer: NodeId, address: Address, listener: Listener) -> None:
        pause = _REDIAL_SECONDS_MIN
        tell_refusal = False
        while True:
            try:
                reader, writer = await self._dial(peer, address)
            except ConnectionRefusedError:
                if tell_refusal:
                    listener.disconnected(peer, refused=True)
                tell_refusal = False
            except _NO_VOTER as error:
                _log.debug("cannot reach peer=%s error=%r", peer, error)
            except JetstreamError as error:
                _log.error("peer=%s at %s:%d refuses us: %s", peer, address.host, address.port, error)
            else:
                await self._talk(peer, reader, writer)
                listener.disconnected(peer, refused=False)
                tell_refusal, pause = True, _REDIAL_SECONDS_MIN
                continue
            await asyncio.sleep(pause)
            pause = min(2 * pause, _REDIAL_SECONDS_MAX)

    async def _dial(
        self, peer: NodeId, address: Address
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and be let in.

        Raises:
            _NO_VOTER: nobody is there who speaks this protocol.
            Unauthorized: the peer does not want us.
        """
        tls = self._identity.client_tls
        async with asyncio.timeout(_DIAL_SECONDS):
            reader, writer = await asyncio.open_connection(
                address.host, address.port, ssl=tls, limit=_GREETING_BYTES_MAX
            )
        with contextlib.ExitStack() as unless_welcome:
            unless_welcome.callback(writer.transport.abort)
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._greet(peer, reader, writer)
            unless_welcome.pop_all()
        return reader, writer

    async def _greet(self, peer: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        identity = self._identity
        greeting = _Greeting(
            protocol=PROTOCOL_VERSION,
            cluster=identity.cluster,
            source=identity.node_id,
            target=peer,
            token=identity.token.get_secret_value() if identity.token is not None else None,
        )
        writer.write(greeting.model_dump_json().encode() + b"\n")
        async with asyncio.timeout(_GREETING_SECONDS):
            welcome = _Welcome.model_validate_json(await reader.readuntil(b"\n"))
        if welcome.error is not None:
            raise Unauthorized(welcome.error)

    async def _talk(self, peer: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Let messages leave on a connection until it breaks."""
        self._links[peer] = writer
        try:
            await reader.read(1)  # the peer says nothing here: what ends this is the connection's end
        except OSError as error:
            _log.debug("connection to peer=%s broke error=%r", peer, error)
        finally:
            del self._links[peer]
            writer.transport.abort()

    # --- being dialled ----------------------------------------------------------------------------

    async def _close_incoming(self) -> None:
        """Cut the connections under their tasks: asyncio takes a cancelled one for an error of ours."""
        for writer in self._incoming.values():
            writer.transport.abort()
        if self._incoming:
            await asyncio.wait(tuple(self._incoming))

    async def _accepted(
        self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection has a task"
        self._incoming[task] = writer
        try:
            source = await self._greeted(reader, writer)
            if source is not None:
                await self._listen_to(source, reader, listener)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.debug("an incoming connection broke error=%r", error)
        except RemoteProtocolError as error:
            _log.warning("an incoming connection is closed: %s", error)
        finally:
            del self._incoming[task]
            writer.transport.abort()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> NodeId | None:
        """Return who dials, None if it was turned away."""
        async with asyncio.timeout(_GREETING_SECONDS):
            line = await reader.readuntil(b"\n")
        try:
            greeting = _Greeting.model_validate_json(line)
        except ValidationError as error:
            raise RemoteProtocolError(f"a greeting that is none: {error.error_count()} faults") from None
        problem = self._objection(greeting)
        writer.write(_Welcome(error=problem).model_dump_json().encode() + b"\n")
        await writer.drain()
        if problem is None:
            return NodeId(greeting.source)
        _log.warning("peer=%r is turned away: %s", greeting.source, problem)
        return None

    def _objection(self, greeting: _Greeting) -> str | None:
        """Return why the one who greets so is not let in; the token is looked at first (V1)."""
        identity = self._identity
        if identity.token is not None:
            wanted = identity.token.get_secret_value().encode()
            if not hmac.compare_digest((greeting.token or "").encode(), wanted):
                return "the token is not right"
        if greeting.protocol != PROTOCOL_VERSION:
            return f"protocol {greeting.protocol} is not {PROTOCOL_VERSION}"
        if greeting.cluster != identity.cluster:
            return f"this is cluster {identity.cluster}, not {greeting.cluster}"
        if greeting.target != identity.node_id:
            return f"this is {identity.node_id}, not {greeting.target}"
        if greeting.source not in self._peers:
            return f"{greeting.source} is no other voter of this cluster"
        return None

    async def _listen_to(self, source: NodeId, reader: asyncio.StreamReader, listener: Listener) -> None:
        messages = MessageReader(source, self._identity.node_id)
        while data := await reader.read(_RECEIVE_BYTES):
            for message in messages.feed(data):
                listener.received(message)
