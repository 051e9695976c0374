"""The two ends of a replication connection: the follower's node dials, the leader's node is dialled.

All streams of which the one node follows the other share the connection. Each is declared under a handle
before it is first spoken of; handles are known to nobody outside these two classes.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final, Protocol

from envelope.errors import RemoteProtocolError
from envelope.limits import STREAMS_MAX
from envelope.types import Incarnation, NodeId, StreamName
from jetstream.node.peers.peer_connection import PeerConnection
from jetstream.node.peers.session_answers import SessionResponseQueue
from jetstream.replica.pulse import Pulse, Verdict
from jetstream.replica.wire import (
    Answer,
    Declare,
    FetchMessage,
    Ping,
    Pong,
    Question,
    RepairAnswer,
    RepairMessage,
    WireMessage,
    encode,
)

_log = logging.getLogger(__name__)

_MS: Final = 1_000_000
_HANDLES_MAX: Final = 2 * STREAMS_MAX
"""On one connection; it is made anew for more, as lives of streams that are over keep theirs."""
_PING: Final = encode(Ping())
_PONG: Final = encode(Pong())

Life = tuple[StreamName, Incarnation]
Crashed = Callable[[BaseException], None]


class SessionHost(Protocol):
    """The streams of a node, as sessions notify them; called on the loop's thread, and must not raise."""

    def fetched(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: FetchMessage
    ) -> None:
        """Handle a fetch of ``peer``, which follows a stream that this node may lead."""

    def answered(self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: Answer) -> None:
        """Handle an answer of ``peer``; the body of a `BatchesMessage` is in it, and not verified."""

    def repair_asked(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairMessage
    ) -> None:
        """Handle a request of ``peer`` for batches that are damaged in its own log."""

    def repair_answered(
        self, peer: NodeId, name: StreamName, incarnation: Incarnation, message: RepairAnswer
    ) -> None:
        """Handle the answer to a repair request; its body is not verified."""

    def connected(self, peer: NodeId) -> None:
        """Note that ``peer`` can be asked; earlier requests are lost."""

    def disconnected(self, peer: NodeId) -> None:
        """Note that ``peer`` cannot be asked any more."""

    def died(self, peer: NodeId) -> None:
        """Note that the process of ``peer`` is gone: nothing listens where it did."""

    def silent(self, peer: NodeId) -> None:
        """Note that ``peer`` has sent nothing for the leader timeout."""

    def heard(self, peer: NodeId) -> None:
        """Note that ``peer``, dead or silent before, sends again; `connected` follows."""


@dataclass(frozen=True, slots=True)
class PeerSessionSettings:
    """Checked against each other when made."""

    leader_timeout_ns: int = 1000 * _MS
    """Nanoseconds without a word after which a peer counts as silent; a pause of this node is not counted.

    Shorter, and a busy node is taken for a dead one; longer, and its streams stand still for longer.
    """

    ping_interval_ns: int = 250 * _MS
    """Nanoseconds without traffic after which a peer is made to say something."""

    def __post_init__(self) -> None:
        assert 0 < 2 * self.ping_interval_ns <= self.leader_timeout_ns, "a healthy peer would be silent"


class FetchRequester:
    """The asking end of a session with one peer; the `Link` to it, connected or not."""

    def __init__(
        self, peer: NodeId, host: SessionHost, settings: PeerSessionSettings, crashed: Crashed
    ) -> None:
        """Wait to be connected."""
        self.pulse = Pulse(settings.leader_timeout_ns)
        self._peer = peer
        self._host = host
        self._ping_interval_ns = settings.ping_interval_ns
        self._crashed = crashed
        self._line: PeerConnection | None = None
        self._handles: dict[Life, int] = {}
        self._lives: dict[int, Life] = {}
        self._since_ping_ns = 0
        self._has_heard = False

    @property
    def is_connected(self) -> bool:
        """Whether the peer can be asked."""
        return self._line is not None

    def fetch(self, life: Life, message: Question) -> bool:
        """See `ReplicaSessions.fetch`."""
        line = self._line
        if line is None:
            return False
        handle = self._handles.get(life)
        if handle is None:
            handle = self._declare(line, life)
        if line.is_full or handle is None:
            line.close()  # the peer does not read, or handles are used up: another connection has them all
            return False
        line.send(encode(message, handle))
        return True

    def passed(self, elapsed_ns: int) -> None:
        """Count ``elapsed_ns``, as silence if nothing came; ping, or cut off a peer that is not alive."""
        line = self._line
        if line is not None and line.has_received:
            line.has_received, self._has_heard = False, True
            self._notify_host(self.pulse.heard())
        else:
            self._notify_host(self.pulse.passed(elapsed_ns))
        if line is None:
            return
        if self.pulse.verdict is not Verdict.ALIVE:
            line.close()
            return
        self._since_ping_ns += elapsed_ns
        if self._since_ping_ns >= self._ping_interval_ns:
            # Also when only we speak: a leader may keep a fetch for as long as it has nothing for it.
            if not (line.has_sent and self._has_heard):
                line.send(_PING)
            self._since_ping_ns, self._has_heard, line.has_sent = 0, False, False

    def _declare(self, line: PeerConnection, life: Life) -> int | None:
        if len(self._lives) == _HANDLES_MAX:
            return None
        handle = self._handles[life] = len(self._lives)
        self._lives[handle] = life
        line.send(encode(Declare(*life), handle))
        return handle

    def _notify_host(self, verdict: Verdict | None) -> None:
        match verdict:
            case Verdict.ALIVE:
                _log.info("peer=%s speaks again", self._peer)
                self._host.heard(self._peer)
            case Verdict.SILENT:
                _log.warning("peer=%s is silent", self._peer)
                self._host.silent(self._peer)
            case Verdict.DEAD:
                _log.warning("peer=%s is dead: nothing listens there", self._peer)
                self._host.died(self._peer)
            case None:
                pass

    # --- Link -------------------------------------------------------------------------------------

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """See `Link.talk`."""
        self._line = PeerConnection(self, self._crashed, writer)
        self._handles.clear()
        self._lives.clear()
        self._notify_host(self.pulse.heard())
        self._host.connected(self._peer)
        try:
            await self._line.carry(reader)
        finally:
            self._line = None

    def broken(self) -> None:
        """See `Link.broken`."""
        self._host.disconnected(self._peer)

    def unreached(self, *, refused: bool) -> None:
        """See `Link.unreached`."""
        self._notify_host(self.pulse.unreached(refused=refused))

    # --- LineEnd -------------------------------------------------------------------------------

    def received(self, handle: int, message: WireMessage) -> None:
        """See `LineEnd.received`."""
        life = self._lives.get(handle)
        match message:
            case Pong():
                pass
            case Declare() | FetchMessage() | RepairMessage() | Ping():
                raise RemoteProtocolError(f"a leader does not say {type(message).__name__}")
            case _ if life is None:
                raise RemoteProtocolError(f"an answer for handle {handle}, which was not declared")
            case RepairAnswer():
                self._host.repair_answered(self._peer, *life, message)
            case _:
                self._host.answered(self._peer, *life, message)

    def has_room(self) -> None:
        """See `LineEnd.has_room`: nothing waits here."""


class FetchResponder:
    """The answering end of a session with one peer, over one connection.

    Attributes:
        answers: to be put under the handle of the life that they are about.
        handles: of the lives that were declared; others were asked about over the connection before this one.
    """

    def __init__(
        self,
        peer: NodeId,
        host: SessionHost,
        executor: Executor | None,
        crashed: Crashed,
        writer: asyncio.StreamWriter,
    ) -> None:
        """``executor`` reads what is not in the page cache."""
        self._peer = peer
        self._host = host
        self._line = PeerConnection(self, crashed, writer)
        self.answers = SessionResponseQueue(self._line, executor, crashed)
        self._lives: dict[int, Life] = {}
        self.handles: dict[Life, int] = {}
        self._silence_ns = 0

    async def carry(self, reader: asyncio.StreamReader) -> None:
        """Serve the connection until it ends; see `Conversation`."""
        try:
            await self._line.carry(reader)
        finally:
            self.answers.close()

    def close(self) -> None:
        """Cut the connection."""
        self._line.close()

    def passed(self, elapsed_ns: int, timeout_ns: int) -> None:
        """Count ``elapsed_ns``; close the connection after ``timeout_ns`` without a byte."""
        self._silence_ns = 0 if self._line.has_received else self._silence_ns + elapsed_ns
        self._line.has_received = False
        if self._silence_ns >= timeout_ns:
            self._line.close()

    # --- LineEnd -------------------------------------------------------------------------------

    def received(self, handle: int, message: WireMessage) -> None:
        """See `LineEnd.received`."""
        match message:
            case FetchMessage() if (life := self._lives.get(handle)) is not None:
                self._host.fetched(self._peer, *life, message)
            case RepairMessage() if (life := self._lives.get(handle)) is not None:
                self._host.repair_asked(self._peer, *life, message)
            case FetchMessage() | RepairMessage():
                raise RemoteProtocolError(f"a fetch for handle {handle}, which was not declared")
            case Declare(name, incarnation):
                if handle in self._lives or len(self._lives) == _HANDLES_MAX:
                    raise RemoteProtocolError(f"handle {handle} cannot be declared")
                self._lives[handle] = (name, incarnation)
                self.handles[name, incarnation] = handle
            case Ping():
                self._line.send(_PONG)
            case _:
                raise RemoteProtocolError(f"a follower does not say {type(message).__name__}")

    def has_room(self) -> None:
        """See `LineEnd.has_room`."""
        self.answers.go_on()
