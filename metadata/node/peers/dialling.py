"""How nodes know each other and dial each other: each all others, once for every purpose, at one port.

A connection begins with one line of JSON each way: source and target, cluster, token and
purpose. The rest is the purpose's own. A connection that breaks is dialled again at once. If that is refused,
nothing listens there any more: the peer's process is dead, which is news that a timeout would bring much
later.

The dialled side lets peers in by `metadata.node.peers.listening`.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import BaseModel, ConfigDict, SecretStr

from envelope.errors import JetstreamError, RemoteProtocolError, Unauthorized, UnsupportedFeatureLevel
from envelope.limits import KIB
from envelope.types import NodeId
from metadata.features import LATEST_LEVEL

_log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 1
METADATA: Final = "metadata"
"""Purpose of the connections for the messages between voters of the metadata group."""
OBSERVER: Final = "observer"
"""Purpose of the connections on which nodes without a vote keep up with the metadata log."""
GREETING_BYTES_MAX: Final = 4 * KIB
GREETING_SECONDS: Final = 5.0
_DIAL_SECONDS: Final = 2.0
_REDIAL_SECONDS_MIN: Final = 0.02
_REDIAL_SECONDS_MAX: Final = 0.25
_UNANSWERED_MS: Final = 2_000
"""After so long without the peer's acknowledgement the kernel gives a connection up (TCP_USER_TIMEOUT)."""


_NO_PEER: Final = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError)
"""Errors of dialling where nothing listens, or something that speaks another protocol."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens for its peers."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Identity of this node to others, and the secrets by which they are let in."""

    cluster: str
    node_id: NodeId
    token: SecretStr | None = None
    server_tls: ssl.SSLContext | None = None
    client_tls: ssl.SSLContext | None = None


class Greeting(BaseModel):
    """The dialling side's line."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    protocol: int
    cluster: str
    source: str
    target: str
    token: str | None = None
    purpose: str = METADATA
    """Greetings had none while there was only that."""
    feature_level: int = 0
    """The highest that the dialling node can; nodes of level 0 do not say it."""


class Welcome(BaseModel):
    """The answer: ``error`` is why the connection is closed, ``later`` that this may change by itself.

    ``too_old``: the dialling node can less than the cluster's feature level, and is to stop.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    error: str | None = None
    later: bool = False
    too_old: bool = False


Conversation = Callable[[NodeId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""What is done with a connection once both sides have greeted, until it ends.

An `OSError`, or a `RemoteProtocolError` that is logged, ends it too; whoever called closes the connection.
"""


class Link(Protocol):
    """The part of one purpose on the connection to one peer; called on the loop's thread."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use a new connection until it breaks; see `Conversation`."""

    def broken(self) -> None:
        """Handle that the connection is gone."""

    def unreached(self, *, refused: bool) -> None:
        """Handle that no connection could be made; ``refused`` if nothing listens there."""


class Callers:
    """Peers that have just been let in: a task that waits to dial one of them again need not wait longer.

    A node that starts dials all others, and would else seem dead to them until their next attempt.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._waited_for: dict[NodeId, asyncio.Event] = {}

    def came(self, peer: NodeId) -> None:
        """Wake the tasks that wait to dial ``peer``."""
        event = self._waited_for.pop(peer, None)
        if event is not None:
            event.set()

    async def pause(self, peer: NodeId, seconds: float) -> None:
        """Return after ``seconds``, or when ``peer`` comes."""
        event = self._waited_for.setdefault(peer, asyncio.Event())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


async def keep_link(
    identity: PeerIdentity, peer: NodeId, address: Address, purpose: str, link: Link, callers: Callers
) -> None:
    """Keep a connection to ``peer`` for ``purpose`` until cancelled.

    Raises:
        UnsupportedFeatureLevel: the cluster is at a level that this node cannot.
    """
    loop = asyncio.get_running_loop()
    pause, objection = _REDIAL_SECONDS_MIN, ""
    while True:
        was_let_in = False
        try:
            reader, writer = await _dial(identity, peer, address, purpose)
        except _NO_PEER as error:
            _log.debug("cannot reach peer=%s purpose=%s error=%r", peer, purpose, error)
            link.unreached(refused=isinstance(error, ConnectionRefusedError))
        except UnsupportedFeatureLevel:
            raise
        except JetstreamError as error:
            if str(error) != objection:
                _log.error("peer=%s at %s:%d refuses us: %s", peer, address.host, address.port, error)
            objection = str(error)
            link.unreached(refused=False)
        else:
            objection, began = "", loop.time()
            await converse(link.talk(reader, writer), writer, peer)
            link.broken()
            if loop.time() - began >= _REDIAL_SECONDS_MIN:  # what ends sooner would be dialled in a circle
                pause = _REDIAL_SECONDS_MIN
                continue
            was_let_in = True
        # Two that are let in and cut off at once would wake each other without end.
        await (asyncio.sleep(pause) if was_let_in else callers.pause(peer, pause))
        pause = min(2 * pause, _REDIAL_SECONDS_MAX)


async def converse(conversation: Awaitable[None], writer: asyncio.StreamWriter, peer: NodeId) -> None:
    """Let a conversation take its course, and close its connection."""
    try:
        await conversation
    except OSError as error:
        _log.debug("a connection with peer=%s broke error=%r", peer, error)
    except RemoteProtocolError as error:
        _log.warning("a connection with peer=%s is closed: %s", peer, error)
    finally:
        writer.transport.abort()


async def _dial(
    identity: PeerIdentity, peer: NodeId, address: Address, purpose: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and be let in.

    Raises:
        _NO_PEER: nothing there speaks this protocol.
        Unauthorized: the peer does not want us.
        UnsupportedFeatureLevel: nor does any other, as this node is too old.
    """
    async with asyncio.timeout(_DIAL_SECONDS):
        reader, writer = await asyncio.open_connection(
            address.host, address.port, ssl=identity.client_tls, limit=GREETING_BYTES_MAX
        )
    with contextlib.ExitStack() as unless_welcome:
        unless_welcome.callback(writer.transport.abort)
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = identity.token.get_secret_value() if identity.token is not None else None
        greeting = Greeting(
            protocol=PROTOCOL_VERSION,
            cluster=identity.cluster,
            source=identity.node_id,
            target=peer,
            token=token,
            purpose=purpose,
            feature_level=LATEST_LEVEL,
        )
        writer.write(greeting.model_dump_json().encode() + b"\n")
        async with asyncio.timeout(GREETING_SECONDS):
            welcome = Welcome.model_validate_json(await reader.readuntil(b"\n"))
        if welcome.later:
            raise ConnectionError(welcome.error)
        if welcome.too_old:
            raise UnsupportedFeatureLevel(f"{peer}: {welcome.error}", supported=LATEST_LEVEL)
        if welcome.error is not None:
            raise Unauthorized(welcome.error)
        unless_welcome.pop_all()
    return reader, writer
