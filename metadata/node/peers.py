"""The connections between nodes: each dials all others, once for every purpose, at one port.

A connection begins with one line of JSON each way: who dials whom, in which cluster, with which token, what
for. What follows is the purpose's own. A connection that breaks is dialled again at once. If that is refused,
nothing listens there any more: the peer's process is dead, which is news that a timeout would bring much
later.

One purpose is known here: the messages of the metadata group (`metadata.raft.wire`), which go from the
dialling side alone. They may be lost, as Raft allows: what cannot leave at once, because there is no
connection or the peer does not read, is dropped and not queued.
"""

import asyncio
import contextlib
import hmac
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
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
METADATA: Final = "metadata"
"""Purpose of the connections for the messages of the metadata group."""
_GREETING_BYTES_MAX: Final = 4 * KIB
_GREETING_SECONDS: Final = 5.0
_DIAL_SECONDS: Final = 2.0
_REDIAL_SECONDS_MIN: Final = 0.02
_REDIAL_SECONDS_MAX: Final = 0.25
_UNSENT_BYTES_MAX: Final = 8 * MIB
"""Beyond it a peer does not read, and messages to it are dropped; one larger message may exceed it."""
_RECEIVE_BYTES: Final = 256 * KIB
_UNANSWERED_MS: Final = 2_000
"""After so long without the peer's acknowledgement the kernel gives a connection up (TCP_USER_TIMEOUT)."""


_NO_VOTER: Final = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
"""What dialling ends with where nobody is, or somebody who speaks something else."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens for its peers."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who this node is to others, and what they must know to be let in."""

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
    purpose: str = METADATA
    """Greetings had none while there was only that."""


class _Welcome(BaseModel):
    """The answer: ``error`` says why the connection is closed, ``later`` that this may change by itself."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    error: str | None = None
    later: bool = False


class Listener(Protocol):
    """Who is told what the network hears; called on the loop's thread."""

    def received(self, message: Sent) -> None:
        """Take in a message that arrived."""

    def disconnected(self, peer: NodeId, *, refused: bool) -> None:
        """Learn that a connection to ``peer`` broke; again, ``refused``, if nothing listens there now."""


Conversation = Callable[[NodeId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What is done with a connection once both sides have greeted, until it ends.

An `OSError`, or a `RemoteProtocolError` that is logged, ends it too; whoever called closes the connection.
"""


class Link(Protocol):
    """What one purpose does with the connection to one peer; called on the loop's thread."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use a new connection until it breaks; see `Conversation`."""

    def broken(self) -> None:
        """Learn that the connection is gone."""

    def unreached(self, *, refused: bool) -> None:
        """Learn that no connection could be made; ``refused`` if nothing listens there."""


async def keep_link(identity: PeerIdentity, peer: NodeId, address: Address, purpose: str, link: Link) -> None:
    """Keep a connection to ``peer`` for ``purpose`` until cancelled."""
    loop = asyncio.get_running_loop()
    pause, objection = _REDIAL_SECONDS_MIN, ""
    while True:
        try:
            reader, writer = await _dial(identity, peer, address, purpose)
        except _NO_VOTER as error:
            _log.debug("cannot reach peer=%s purpose=%s error=%r", peer, purpose, error)
            link.unreached(refused=isinstance(error, ConnectionRefusedError))
        except JetstreamError as error:
            if str(error) != objection:
                _log.error("peer=%s at %s:%d refuses us: %s", peer, address.host, address.port, error)
            objection = str(error)
            link.unreached(refused=False)
        else:
            objection, began = "", loop.time()
            await _converse(link.talk(reader, writer), writer, peer)
            link.broken()
            if loop.time() - began >= _REDIAL_SECONDS_MIN:  # what ends sooner would be dialled in a circle
                pause = _REDIAL_SECONDS_MIN
                continue
        await asyncio.sleep(pause)
        pause = min(2 * pause, _REDIAL_SECONDS_MAX)


async def _converse(conversation: Awaitable[None], writer: asyncio.StreamWriter, peer: NodeId) -> None:
    """Let a conversation take its course, and close its connection."""
    try:
        await conversation
    except OSError as error:
        _log.debug("a connection with peer=%s broke error=%r", peer, error)
    except RemoteProtocolError as error:
        _log.warning("a connection with peer=%s is closed: %s", peer, error)
    finally:
        writer.transport.abort()


class PeerNetwork:
    """The connections of one node: lets all purposes in, and carries the messages of the metadata group.

    Invariant:
        V1: a connection is handed on only if its greeting named its source, this node, this cluster and the
            token.
    """

    def __init__(self, identity: PeerIdentity, peers: Mapping[NodeId, Address]) -> None:
        """Prepare to speak as ``identity`` with ``peers``, all other voters."""
        assert identity.node_id not in peers, "a voter does not dial itself"
        self._identity = identity
        self._peers = dict(peers)
        self._served: dict[str, Conversation] = {}
        self._links: dict[NodeId, asyncio.StreamWriter] = {}
        self._incoming: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.dropped = 0
        """Messages that could not leave."""

    @contextlib.contextmanager
    def serve(self, purpose: str, conversation: Conversation) -> Iterator[None]:
        """Let peers in that come for ``purpose``, for the block; else they are told to come again later."""
        assert purpose not in self._served, f"{purpose} is served already"
        self._served[purpose] = conversation
        try:
            yield
        finally:
            del self._served[purpose]

    async def run(self, listening: socket.socket, listener: Listener) -> None:
        """Keep a connection to every peer, and let theirs in, until cancelled; then close everything.

        Args:
            listening: bound to this voter's address.
            listener: is told what arrives and what breaks.

        Raises:
            OSError: the socket cannot be listened on.
        """
        with self.serve(METADATA, partial(self._listen, listener)):
            await self._run(listening, listener)

    async def _run(self, listening: socket.socket, listener: Listener) -> None:
        server = await asyncio.start_server(
            self._accepted,
            sock=listening,
            ssl=self._identity.server_tls,
            limit=_GREETING_BYTES_MAX,
        )
        try:
            async with asyncio.TaskGroup() as links:
                for peer, address in self._peers.items():
                    link = _MessageLink(peer, self._links, listener)
                    links.create_task(keep_link(self._identity, peer, address, METADATA, link))
        finally:
            server.close()
            await self._close_incoming()

    def send(self, message: Sent) -> None:
        """Send now or never."""
        link = self._links.get(message.target)
        # A transport may be closed before whoever reads from it has heard: uvloop's refuses to be written to.
        if (
            link is None
            or link.transport.is_closing()
            or link.transport.get_write_buffer_size() > _UNSENT_BYTES_MAX
        ):
            self.dropped += 1
        else:
            link.write(encode(message))

    # --- being dialled ----------------------------------------------------------------------------

    async def _close_incoming(self) -> None:
        """Cut the connections under their tasks: asyncio takes a cancelled one for an error of ours."""
        for writer in self._incoming.values():
            writer.transport.abort()
        if self._incoming:
            await asyncio.wait(tuple(self._incoming))

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection has a task"
        self._incoming[task] = writer
        try:
            greeting = await self._greeted(reader, writer)
            if greeting is not None:
                source = NodeId(greeting.source)
                await _converse(self._served[greeting.purpose](source, reader, writer), writer, source)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            _log.debug("an incoming connection broke error=%r", error)
        except RemoteProtocolError as error:
            _log.warning("an incoming connection is closed: %s", error)
        finally:
            del self._incoming[task]
            writer.transport.abort()

    async def _greeted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Greeting | None:
        """Return the greeting of who dials, None if it was turned away."""
        async with asyncio.timeout(_GREETING_SECONDS):
            line = await reader.readuntil(b"\n")
        try:
            greeting = _Greeting.model_validate_json(line)
        except ValidationError as error:
            raise RemoteProtocolError(f"a greeting that is none: {error.error_count()} faults") from None
        problem = self._objection(greeting)
        later = problem is None and greeting.purpose not in self._served
        if later:
            problem = f"{greeting.purpose} is not served here now"
        welcome = _Welcome(error=problem, later=later)
        writer.write(welcome.model_dump_json(exclude_defaults=True).encode() + b"\n")
        await writer.drain()
        if problem is None:
            return greeting
        level = logging.DEBUG if later else logging.WARNING
        _log.log(level, "peer=%r is turned away: %s", greeting.source, problem)
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

    async def _listen(
        self, listener: Listener, source: NodeId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        messages = MessageReader(source, self._identity.node_id)
        while data := await reader.read(_RECEIVE_BYTES):
            for message in messages.feed(data):
                listener.received(message)


async def _dial(
    identity: PeerIdentity, peer: NodeId, address: Address, purpose: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and be let in.

    Raises:
        _NO_VOTER: nobody is there who speaks this protocol.
        Unauthorized: the peer does not want us.
    """
    async with asyncio.timeout(_DIAL_SECONDS):
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=identity.client_tls, limit=_GREETING_BYTES_MAX
        )
    with contextlib.ExitStack() as unless_welcome:
        unless_welcome.callback(writer.transport.abort)
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = identity.token.get_secret_value() if identity.token is not None else None
        greeting = _Greeting(
            protocol=PROTOCOL_VERSION,
            cluster=identity.cluster,
            source=identity.node_id,
            target=peer,
            token=token,
            purpose=purpose,
        )
        writer.write(greeting.model_dump_json().encode() + b"\n")
        async with asyncio.timeout(_GREETING_SECONDS):
            welcome = _Welcome.model_validate_json(await reader.readuntil(b"\n"))
        if welcome.later:
            raise ConnectionError(welcome.error)
        if welcome.error is not None:
            raise Unauthorized(welcome.error)
        unless_welcome.pop_all()
    return reader, writer


class _MessageLink:
    """The `Link` on which the messages to one voter leave."""

    def __init__(
        self, peer: NodeId, links: MutableMapping[NodeId, asyncio.StreamWriter], listener: Listener
    ) -> None:
        """``links`` has the connection while there is one."""
        self._peer = peer
        self._links = links
        self._listener = listener
        self._tell_refusal = False

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See `Link.talk`."""
        self._links[self._peer] = writer
        try:
            await reader.read(1)  # the peer says nothing here: what ends this is the connection's end
        finally:
            del self._links[self._peer]

    def broken(self) -> None:
        """See `Link.broken`."""
        self._tell_refusal = True
        self._listener.disconnected(self._peer, refused=False)

    def unreached(self, *, refused: bool) -> None:
        """See `Link.unreached`."""
        if refused and self._tell_refusal:
            self._tell_refusal = False
            self._listener.disconnected(self._peer, refused=True)
