"""The private seam to nats-py: its parser object replaced by a batching one, acks written to its transport.

nats-py spends 5 µs of Python on each message; parsing a chunk at a time spends less than 1 (docs/adr/0004).
The seam is pinned to a minor version and checked at start; where it does not fit, `seam_problem` says why
and the caller uses nats-py's public interface instead. Only this module and `nats_transport` touch private
attributes.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, Final, TypeVar, assert_never

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from jetstream.ingest.messages import MessageBlock
from jetstream.ingest.parser import (
    Block,
    Control,
    ControlKind,
    MessageParser,
    NatsProtocolError,
    ParsedItem,
)
from jetstream.node.crash import Crash
from jetstream.node.nats_transport import DirectTransport

# ruff: noqa: SLF001 - this module is the adapter to nats-py's private attributes

_log = logging.getLogger(__name__)

T = TypeVar("T")
Deliver = Callable[[MessageBlock], None]
Lost = Callable[[], None]

_SEAM_MINOR: Final = "2.16."
_PARSER_ATTRIBUTES: Final = (
    "_ps",
    "_process_msg",
    "_process_ping",
    "_process_pong",
    "_process_info",
    "_process_err",
)
_WRITE_BUFFER_BYTES_MAX: Final = 8 * 1024 * 1024


def seam_problem(client: Client) -> str | None:
    """Return why the seam must not be used with this nats-py, None if it fits."""
    installed = version("nats-py")
    if not installed.startswith(_SEAM_MINOR):
        return f"nats-py is {installed}, the seam is tested with {_SEAM_MINOR}x"
    missing = [name for name in _PARSER_ATTRIBUTES if not hasattr(client, name)]
    if missing:
        return f"nats-py's client has no {', '.join(missing)}"
    missing = [name for name in ("parse", "reset") if not hasattr(client._ps, name)]
    return f"nats-py's parser has no {', '.join(missing)}" if missing else None


class BatchingParser:
    """Stands where nats-py keeps its parser; messages of our routes leave as whole blocks.

    Blocks are delivered from within the loop's read callback. What nats-py has to deal with, control
    operations and messages of its own subscriptions, waits for its read loop, which calls `parse`.
    """

    def __init__(self, client: Client, routes: dict[int, Deliver], crash: Crash) -> None:
        """Install into ``client``; ``routes`` (by subscription id) may change at any time."""
        self._client = client
        self._crash = crash
        self._routes = routes
        self._parser = MessageParser()
        self._waiting: deque[ParsedItem] = deque()
        self._broken = False
        self._transport = DirectTransport(self._receive)
        client._ps = self  # type: ignore[assignment]  # the seam: same methods, not the same class
        client._transport = self._transport

    def reset(self) -> None:
        """Give the connection up; nats-py calls this when it has decided to make another one.

        It closes the old one a turn of the loop later. What that still delivers may be the rest of the
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
        self._receive(data)
        while self._waiting:
            match self._waiting.popleft():
                case Block(sid, messages):
                    await self._foreign(sid, messages)
                case Control(kind, argument):
                    await self._control(kind, argument)
        if self._broken:
            raise nats.errors.ProtocolError

    def _receive(self, data: bytes) -> None:
        """Take in one chunk: deliver its blocks, keep the rest for nats-py."""
        if self._broken:
            return
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
        for item in items:
            if isinstance(item, Block) and item.sid in self._routes:
                self._deliver(self._routes[item.sid], item.messages)
            else:
                self._waiting.append(item)
        if self._waiting or self._broken:
            self._transport.wake()

    def _deliver(self, deliver: Deliver, messages: MessageBlock) -> None:
        try:
            deliver(messages)
        except Exception as error:  # noqa: BLE001 - an error of ours: the node must not live on deaf
            self._crash.report(error)

    async def _foreign(self, sid: int, messages: MessageBlock) -> None:
        """Hand nats-py what belongs to its own subscriptions, or to none since an unsubscribe."""
        process = self._client._process_msg
        rows = zip(messages.subjects, messages.replies, messages.payloads, messages.headers, strict=True)
        for subject, reply, payload, header in rows:
            await process(sid, subject, reply, payload, header)  # type: ignore[arg-type]  # None: no header

    async def _control(self, kind: ControlKind, argument: bytes) -> None:
        match kind:
            case ControlKind.PING:
                await self._client._process_ping()
            case ControlKind.PONG:
                await self._client._process_pong()
            case ControlKind.INFO:
                await self._client._process_info(json.loads(argument))
            case ControlKind.ERR:
                await self._client._process_err(argument.decode(errors="replace").lower())
            case ControlKind.OK:
                pass
            case _:
                assert_never(kind)


def has_jetstream(client: Client) -> bool:
    """Tell whether the connected server says in its INFO that its own JetStream is enabled."""
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
    elif client._transport:
        client._transport.close()  # type: ignore[no-untyped-call]  # nats-py's transport is untyped
        await client._transport.wait_closed()  # type: ignore[no-untyped-call]  # as above


async def answered(client: Client, seconds: float) -> None:
    """Return when the server has answered a PING, and so handled all that it was sent before.

    Not nats-py's own ``flush``: that cancels what it waits for when its time is over, and the PONG that comes
    late then ends nats-py's read loop. The client would stay connected, and hear nothing for a minute.

    Raises:
        nats.errors.Error: no answer in time, or the client is closed.
    """
    if client.is_closed:
        raise nats.errors.ConnectionClosedError
    pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    await client._send_ping(pong)
    await asyncio.wait((pong,), timeout=seconds)
    if pong.cancelled():
        raise nats.errors.ConnectionClosedError
    if not pong.done():
        raise nats.errors.FlushTimeoutError


async def cancellable(call: Awaitable[T]) -> T:
    """Await a call of nats-py without losing our own cancellation.

    nats-py waits with ``asyncio.wait_for``, which up to Python 3.11 returns its result to a task that is
    cancelled in the very turn in which that comes; some methods catch `asyncio.CancelledError`, too. Who was
    cancelled would live on. Not for a task that goes on after its cancellation, to clean up.
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


async def unsubscribe(client: Client, subscription: Subscription) -> None:
    """End a subscription of ``client``, whatever state the client is in: no later connection has it.

    Raises:
        nats.errors.Error: the client was closed meanwhile.
    """
    if client.is_closed:
        return
    was_reconnecting = client.is_reconnecting
    await subscription.unsubscribe()
    if was_reconnecting:
        # nats-py then sends no UNSUB, and a SUB may wait among its commands for the new connection.
        await client._send_unsubscribe(subscription_id(subscription))


def block_of(message: Msg) -> MessageBlock:
    """Turn one message of the stock parser into a block: the slow path when the seam does not fit."""
    header: bytes | None = None
    if message.headers:
        lines = "".join(f"{name}: {value}\r\n" for name, value in message.headers.items())
        header = f"NATS/1.0\r\n{lines}\r\n".encode()
    return MessageBlock([message.subject.encode()], [message.reply.encode()], [bytes(message.data)], [header])


class RawPublisher:
    """Writes ready-made PUB commands to nats-py's transport, all of one turn of the loop with one call.

    A hundred streams whose groups were synced together ack together: one ``send`` for all of them costs what
    it would cost each.
    """

    def __init__(self, client: Client) -> None:
        """Publish on ``client``'s current connection."""
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[bytes, Lost]] = []

    def write(self, commands: bytes, lost: Lost) -> None:
        """Hand whole PUB commands to the connection; call ``lost`` if it is down or its buffer is full.

        What is not written is lost, as NATS allows: a publisher that hears nothing retries. That may be known
        only at the end of the loop's turn.
        """
        if self._writer() is None:
            lost()
            return
        if not self._waiting:
            self._loop.call_soon(self.flush)
        self._waiting.append((commands, lost))

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        writer = self._writer()
        if writer is not None:
            writer.write(b"".join([commands for commands, _ in waiting]))
            return
        for _, lost in waiting:
            lost()

    def _writer(self) -> asyncio.StreamWriter | None:
        """Return where to write, None if the connection is down or its buffer is full."""
        transport: Any = self._client._transport
        writer: asyncio.StreamWriter | None = getattr(transport, "_io_writer", None)
        if not self._client.is_connected or writer is None or writer.transport.is_closing():
            return None
        return writer if writer.transport.get_write_buffer_size() <= _WRITE_BUFFER_BYTES_MAX else None
