"""The private seam to nats-py: a batching parser instead of its own, acks and SUBs written to its transport.

nats-py spends 5 µs of Python on each message; parsing a chunk at a time spends less than 1 (ADR 0004).
Its own parser also takes bytes of a subject for the end of it, so no connection of a node uses that. The seam
is pinned to a minor version and checked whenever a client is made. Only this module and
`jetstream.node.nats.transport` touch private attributes.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import cache
from importlib.metadata import version
from typing import Final, TypeVar, assert_never
from weakref import WeakKeyDictionary

import nats.errors
from nats.aio.client import PING_PROTO, Client
from nats.aio.subscription import Subscription
from nats.protocol import command as prot_command

from envelope.acks import publish_command
from envelope.errors import InvalidConfig
from envelope.limits import CONTROL_LINE_BYTES_MAX
from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.parser import Control, ControlKind, MessageParser, NatsProtocolError
from jetstream.node.nats.errors import Refusal, refusal_in
from jetstream.node.nats.transport import DirectTransport
from jetstream.node.runtime.clock import Clock
from jetstream.node.runtime.crash import Crash

# ruff: noqa: SLF001 - this module is the adapter to nats-py's private attributes

_log = logging.getLogger(__name__)

T = TypeVar("T")
Deliver = Callable[[MessageBlock], None]
Lost = Callable[[], None]

_SEAM_MINOR: Final = "2.16."
_CLIENT_ATTRIBUTES: Final = (
    "_ps",
    "_sid",
    "_pending",
    "_pongs",
    "_pings_outstanding",
    "_server_pool",
    "_subs",
    "_send_command",
    "_process_ping",
    "_process_pong",
    "_process_info",
    "_process_err",
)
_WRITE_BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024


def check_seam(client: Client) -> None:
    """Refuse a nats-py that the seam does not fit.

    Raises:
        InvalidConfig: another minor version is installed, or an attribute is missing.
    """
    installed = _installed_version()
    missing = [name for name in _CLIENT_ATTRIBUTES if not hasattr(client, name)]
    missing += [name for name in ("parse", "reset") if not hasattr(client._ps, name)]
    if missing or not installed.startswith(_SEAM_MINOR):
        lacking = f" without {', '.join(missing)}" if missing else ""
        raise InvalidConfig(f"nats-py is {installed}{lacking}, and must be {_SEAM_MINOR}x")


@cache
def _installed_version() -> str:
    """To parse a distribution's metadata takes longer than to connect."""
    return version("nats-py")


class DropKind(StrEnum):
    """The kinds of messages that are dropped."""

    SUBJECT = "subject"
    """A message whose subject the pattern of its subscription does not match."""
    REPLY = "reply"
    """A reply subject that no answer can be published on; the message counts as one without."""


Dropped = Callable[[DropKind, int], None]


class BatchingParser:
    """Stands where nats-py keeps its parser; messages of our routes leave as whole blocks.

    Blocks are delivered from within the loop's read callback. Control operations wait for nats-py's read
    loop, which calls `parse`; no message reaches nats-py.

    Attributes:
        heard_at: when bytes of the server came last. A server that sends anything is there: nats-py, which
            gives up one that owes it several PONGs, need not wait for one that is behind many messages.
    """

    def __init__(
        self,
        client: Client,
        routes: dict[int, Deliver],
        crash: Crash,
        dropped: Dropped = lambda _kind, _number: None,
        max_control_line: int = CONTROL_LINE_BYTES_MAX,
        *,
        clock: Clock,
    ) -> None:
        """Install into ``client``.

        Args:
            client: not connected yet.
            routes: who gets the messages of each subscription id; may change at any time.
            crash: gets errors of ours.
            dropped: called with the kind and number of messages that are dropped.
            max_control_line: of the server.
            clock: for ``heard_at``.
        """
        self.heard_at = clock.monotonic()
        self._clock = clock
        self._client = client
        self._crash = crash
        self._routes = routes
        self._dropped = dropped
        self._parser = MessageParser(max_control_line=max_control_line)
        self._waiting: deque[Control] = deque()
        self._broken = False
        self._transport = DirectTransport(self._receive)
        client._ps = self  # type: ignore[assignment]  # the seam: same methods, not the same class
        client._transport = self._transport

    def reset(self) -> None:
        """Give the connection up; nats-py calls this when it has decided to make another one.

        It closes the old one a turn of the loop later. The old one may still deliver the rest of the
        message that is forgotten here, and a payload must not be read as commands.
        """
        self._transport.drop()
        self._parser.reset()
        self._waiting.clear()
        self._broken = False

    async def parse(self, data: bytes = b"") -> None:
        """Do what waits for nats-py; ``data`` is what came before its read loop began.

        Raises:
            nats.errors.ProtocolError: the server sent garbage; nats-py then reconnects.
        """
        if data:
            self._receive(data)
        while self._waiting:
            control = self._waiting.popleft()
            await self._control(control.kind, control.argument)
        if self._broken:
            raise nats.errors.ProtocolError

    def _receive(self, data: bytes) -> None:
        """Parse one chunk: deliver its blocks, keep the rest for nats-py."""
        if self._broken:
            return
        self.heard_at = self._clock.monotonic()
        self._client._pings_outstanding = 0
        try:
            items = self._parser.feed(data)
        except NatsProtocolError as error:
            _log.warning("garbage from the NATS server: %s", error)
            self._broken = True
            # What was complete before the garbage was delivered by NATS and is not ours to drop.
            items = error.items
        except Exception as error:  # noqa: BLE001 - an error of ours: the node must not live on half deaf
            self._crash.report(error)
            self._broken, items = True, []
        if self._parser.unanswerable:
            self._dropped(DropKind.REPLY, self._parser.unanswerable)
            self._parser.unanswerable = 0
        for item in items:
            if isinstance(item, Control):
                self._waiting.append(item)
            elif item.sid in self._routes:  # not unsubscribed meanwhile
                try:
                    self._routes[item.sid](item.messages)
                except Exception as error:  # noqa: BLE001 - an error of ours: the node must not live on deaf
                    self._crash.report(error)
        if self._waiting or self._broken:
            self._transport.wake()

    async def _control(self, kind: ControlKind, argument: bytes) -> None:
        match kind:
            case ControlKind.PING:
                await self._client._process_ping()
            case ControlKind.PONG:
                await self._client._process_pong()
            case ControlKind.INFO:
                await self._client._process_info(json.loads(argument))
            case ControlKind.ERR:
                await self._client._process_err(argument.decode(errors="replace"))
            case ControlKind.OK:
                pass
            case _:
                assert_never(kind)


def forget_gone_servers(client: Client) -> None:
    """Leave out servers that could not be reached, and of which only another server has said that they exist.

    They are heard of again from any server that knows them; those of the configuration stay.
    """
    client._server_pool[:] = [
        server for server in client._server_pool if not server.discovered or server.reconnects == 0
    ]


def has_jetstream(client: Client) -> bool:
    """Return whether the connected server says in its INFO that its own JetStream is enabled."""
    return bool(client._server_info.get("jetstream", False))


async def close(client: Client) -> None:
    """Close a client in any state; nats-py's own ``close`` asserts that it was connected once."""
    if client._flush_queue is not None:
        if not client.is_connected:  # nats-py would write what waits to the connection that is gone
            client._pending, client._pending_data_size = [], 0
        try:
            await client.close()
        except asyncio.CancelledError:
            # nats-py lets the cancellation of its own reconnect task escape; ours must go on.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        finally:
            # A ``close`` that is cancelled leaves it open, and another one does nothing.
            client._transport.close()  # type: ignore[union-attr]  # it has one from its beginning
    elif client._transport:
        client._transport.close()  # type: ignore[no-untyped-call]  # nats-py's transport is untyped
        await client._transport.wait_closed()  # type: ignore[no-untyped-call]  # as above


class Subscriber:
    """Subscribes for a client, and stands where nats-py handles ``-ERR``.

    nats-py closes its client for good at almost every ``-ERR``. A server that does not want to keep the
    connection ends it itself, and nats-py makes another one.

    A refusal may name no subscription. But a server does everything in order: what it refuses before it
    answers a PING is what it was asked for since the PING before, and that is one subscription each.
    """

    def __init__(self, client: Client, handle: Callable[[Exception], Awaitable[None]]) -> None:
        """Install into ``client``; every error of the server goes to ``handle`` in the end."""
        self._client = client
        self._handle = handle
        self._asked: WeakKeyDictionary[asyncio.Future[bool], int] = WeakKeyDictionary()
        self._refused: dict[int, Callable[[Refusal], None]] = {}
        self._withdrawn: dict[int, Subscription] = {}
        client._process_err = self._process  # type: ignore[method-assign]  # the seam

    def subscription(self, subject: str, queue: str) -> Subscription:
        """Return a subscription that is still to be asked for; its messages go the way of the parser."""
        client = self._client
        client._sid += 1
        return Subscription(client, client._sid, subject, queue=queue)

    def ask(self, subscription: Subscription, refused: Callable[[Refusal], None]) -> "asyncio.Future[bool]":
        """Ask the server for a subscription; return what is done once it has answered.

        Args:
            subscription: the server may have it already: it has it once in the end, or not at all.
            refused: called before the answer if the server refuses it, or later if it ends it.

        Raises:
            nats.errors.Error: there is no connection.
        """
        sid = subscription_id(subscription)
        again = prot_command.unsub_cmd(sid, 0)  # one more than the limit would be refused, even one it has
        command = prot_command.sub_cmd(subscription.subject, subscription.queue, sid)
        answer = _ping(self._client, again + command)
        self._client._subs[sid] = subscription
        self._withdrawn.pop(sid, None)
        self._refused[sid] = refused
        self._asked[answer] = sid
        return answer

    def withdraw(self, subscription: Subscription) -> None:
        """Keep nats-py from asking the next server for a subscription, in words whose answer is lost."""
        sid = subscription_id(subscription)
        if self._client._subs.pop(sid, None) is not None:
            self._withdrawn[sid] = subscription

    def forget(self, subscription: Subscription) -> None:
        """Hear no more of a subscription that ends."""
        self._refused.pop(subscription_id(subscription), None)
        self._withdrawn.pop(subscription_id(subscription), None)

    def end(self) -> None:
        """End what the client, which is closed, does not know of."""
        while self._withdrawn:
            self._withdrawn.popitem()[1]._stop_processing()

    async def _process(self, err_msg: str) -> None:
        error = err_msg.strip("'")
        refusal = refusal_in(error)
        if refusal is not None:
            pongs = self._client._pongs
            sid = refusal.sid if refusal.sid is not None else self._asked.get(pongs[0]) if pongs else None
            if (refused := self._refused.get(-1 if sid is None else sid)) is not None:
                refused(refusal)
        await self._handle(nats.errors.Error(f"nats: {error}"))


def _ping(client: Client, commands: bytes = b"") -> "asyncio.Future[bool]":
    """Write ``commands`` and a PING behind all that nats-py was given before; return what the PONG ends.

    nats-py writes a PING past the commands that wait for its flusher.

    Raises:
        nats.errors.Error: there is no connection.
    """
    transport = _write_transport(client)
    if transport is None:
        raise nats.errors.ConnectionClosedError
    answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    transport.write(b"".join((*client._pending, commands, PING_PROTO)))
    client._pending, client._pending_data_size = [], 0
    client._pongs.append(answer)
    return answer


def _write_transport(client: Client) -> asyncio.WriteTransport | None:
    """Return where to write, None if the connection is down."""
    transport: asyncio.WriteTransport | None = getattr(client._transport, "write_transport", None)
    return None if transport is None or not client.is_connected or transport.is_closing() else transport


async def answered(client: Client, seconds: float) -> None:
    """Return when the server has answered a PING, and so handled all that it was sent before.

    Not nats-py's own ``flush``: that cancels what it waits for when its time is over, and the PONG that comes
    late then ends nats-py's read loop. The client would stay connected, and hear nothing for a minute.

    Raises:
        nats.errors.Error: no answer in time, or there is no connection.
    """
    if (await asyncio.wait((_ping(client),), timeout=seconds))[1]:
        raise nats.errors.FlushTimeoutError


async def cancellable(call: Awaitable[T]) -> T:
    """Await a call of nats-py without losing our own cancellation.

    nats-py waits with ``asyncio.wait_for``, which up to Python 3.11 returns its result to a task that is
    cancelled in the very turn in which that comes; some methods catch `asyncio.CancelledError`, too. A task
    that was cancelled would live on. Not for a task that goes on after its cancellation, to clean up.
    """
    try:
        return await call
    finally:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError


def subscription_id(subscription: Subscription) -> int:
    """Return the sid nats-py gave a subscription."""
    sid: int = subscription._id
    return sid


async def publish(
    client: Client, subject: bytes, payload: bytes, reply: bytes = b"", header: bytes = b""
) -> None:
    """Publish on a subject that may be any bytes a reply subject of a `MessageBlock` may be.

    As nats-py's own, which takes text only: what is published while it reconnects waits for the connection.
    ``header`` is a header block, or empty.

    Raises:
        nats.errors.Error: the client is closed, its buffer is full, or the server takes no payload so large.
    """
    if client.is_closed:
        raise nats.errors.ConnectionClosedError
    if len(header) + len(payload) > client.max_payload:
        raise nats.errors.MaxPayloadError
    size, pending_max = client.pending_data_size + len(payload), client._max_pending_size
    if not client.is_connected and size > pending_max:
        raise nats.errors.OutboundBufferLimitError
    address = b"%b %b" % (subject, reply) if reply else subject
    await client._send_command(publish_command(address, payload, header))
    if client._flush_queue is not None and client._flush_queue.empty():
        await client._flush_pending()


async def unsubscribe(client: Client, subscription: Subscription) -> None:
    """End a subscription of ``client``, whatever state the client is in: no later connection has it.

    Raises:
        nats.errors.Error: the client was closed meanwhile.
    """
    if client.is_closed:
        return
    await subscription.unsubscribe()


class RawPublisher:
    """Writes ready-made PUB commands to nats-py's transport, all of one turn of the loop with one call.

    A hundred streams whose groups were synced together ack together: one ``send`` for all of them costs what
    it would cost each.
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        """The present connection's."""
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._lost: list[Lost] = []

    def write(self, commands: bytes, lost: Lost) -> None:
        """Write whole PUB commands; call ``lost`` if the connection is down by then or its buffer is full.

        Commands that are not written are lost, as NATS allows: a publisher without an answer retries.
        """
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append(commands)
        self._lost.append(lost)

    def flush(self) -> None:
        """Write what waits now, not at the end of the loop's turn."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        losses, self._lost = self._lost, []
        transport = _write_transport(self.client)
        if transport is not None and transport.get_write_buffer_size() <= _WRITE_BUFFER_BYTES_MAX:
            transport.write(b"".join(waiting))
            return
        for lost in losses:
            lost()
