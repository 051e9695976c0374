"""A network between processes on loopback that loses its links: TCP proxies for each direction of each pair.

Every party reaches another at a port of its own, the entrance of a `Way`, so that what one does to the pair
(a, b) nobody else feels. A connection from a to b carries bytes both ways; the `Direction` from a to b has
those that a sends, on the connections that either has dialled. A direction can be held (nothing arrives, the
connections stay, nobody is told), slow, and narrow. A way can be refused, as by a firewall, and cut.

A held direction keeps what was sent, as a retransmitting kernel does: when it is released all of it arrives,
late, in order, the ends of connections too. Cut before that, it is lost.
"""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, cast

from tests.support.protocol_server import ProtocolServer

_LOOPBACK: Final = "127.0.0.1"
_QUEUED_BYTES_MAX: Final = 1 << 20
"""Then the sender's own buffers fill up."""

Pair = tuple[str, str]
"""From whom to whom."""


def reserved_port() -> tuple[socket.socket, int]:
    """Return a port of loopback, and the socket that keeps it from everybody who does not listen there.

    Whoever listens there must set SO_REUSEADDR, and may end and come back; a dialler is refused meanwhile.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((_LOOPBACK, 0))
    return reservation, int(reservation.getsockname()[1])


class Direction:
    """How bytes get from one party to another."""

    def __init__(self) -> None:
        """Begin with a link that does nothing to them."""
        self.pipes: set[_Pipe] = set()
        self.delay_s = 0.0
        self.bytes_per_s: float | None = None
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_held(self) -> bool:
        """Whether nothing arrives."""
        return not self._open.is_set()

    def hold(self) -> None:
        """Let nothing arrive from now on."""
        self._open.clear()

    def release(self) -> None:
        """Let everything arrive that was held."""
        self._open.set()
        for pipe in tuple(self.pipes):
            pipe.flush()

    def slow(self, delay_s: float, bytes_per_s: float | None) -> None:
        """Delay what is sent from now on; ``bytes_per_s`` on each connection, None without a limit."""
        self.delay_s, self.bytes_per_s = delay_s, bytes_per_s

    async def passable(self) -> None:
        """Wait until it is not held."""
        await self._open.wait()


class _Pipe:
    """What one side of a connection sends to the other, through a direction; None is the end."""

    def __init__(self, direction: Direction) -> None:
        self.source: asyncio.Transport | None = None
        self.target: asyncio.Transport | None = None
        self._direction = direction
        self._loop = asyncio.get_running_loop()
        self._queue: deque[tuple[float, bytes | None]] = deque()
        self._queued_bytes = 0
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_target_full = False
        self._is_source_paused = False
        direction.pipes.add(self)

    def put(self, data: bytes | None) -> None:
        """Take in what the source says, or that it has ended."""
        direction = self._direction
        due = max(self._last_due, self._loop.time() + direction.delay_s)
        if direction.bytes_per_s is not None and data is not None:
            due += len(data) / direction.bytes_per_s
        self._last_due = due
        self._queue.append((due, data))
        self._queued_bytes += len(data or b"")
        self.flush()

    def target_is_full(self, *, is_full: bool) -> None:
        """Learn whether the target's buffer is full."""
        self._is_target_full = is_full
        self._pause_source()

    def flush(self) -> None:
        """Deliver what is due; come back for what is not."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        target = self.target
        if target is None or self._direction.is_held:
            self._pause_source()
            return
        while self._queue:
            due, data = self._queue[0]
            if due > self._loop.time():
                self._timer = self._loop.call_at(due, self.flush)
                break
            self._queue.popleft()
            self._queued_bytes -= len(data or b"")
            if data is None:
                target.close()
                self.drop()
            elif not target.is_closing():
                target.write(data)
        self._pause_source()

    def drop(self) -> None:
        """Carry nothing any more."""
        self._direction.pipes.discard(self)
        self._queue.clear()
        self._queued_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _pause_source(self) -> None:
        source, pause = self.source, self._is_target_full or self._queued_bytes > _QUEUED_BYTES_MAX
        if source is None or source.is_closing() or pause == self._is_source_paused:
            return
        self._is_source_paused = pause
        if pause:
            source.pause_reading()
        else:
            source.resume_reading()


class _Side(asyncio.Protocol):
    """One of the two sockets of a carried connection."""

    def __init__(self, out: _Pipe, into: _Pipe, made: Callable[["_Side"], object]) -> None:
        """What this side says goes to ``out``; what it is told comes from ``into``."""
        self._out = out
        self._into = into
        self._made = made
        self.transport: asyncio.Transport | None = None

    def has_ended(self) -> bool:
        """Tell whether its socket is closed, or is about to be."""
        return self.transport is not None and self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not isinstance: uvloop's transports have the methods, not the base class.
        self.transport = self._out.source = self._into.target = cast("asyncio.Transport", transport)
        self._into.flush()
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self._out.put(data)

    def pause_writing(self) -> None:
        self._into.target_is_full(is_full=True)

    def resume_writing(self) -> None:
        self._into.target_is_full(is_full=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._into.drop()
        self._out.put(None)

    def abort(self) -> None:
        """End it at once, and lose what is on its way."""
        self._into.drop()
        self._out.drop()
        if self.transport is not None:
            self.transport.abort()


class Way:
    """How one party dials another; its connections carry bytes ``there`` and ``back``."""

    def __init__(self, target: int, there: Direction, back: Direction, tasks: asyncio.TaskGroup) -> None:
        """Take a port for the entrance; `open` lets somebody in.

        Args:
            target: port of loopback.
            there: from who dials.
            back: to who dials.
            tasks: in which it dials on.
        """
        self._target = target
        self._there = there
        self._back = back
        self._tasks = tasks
        self._reservation, self.port = reserved_port()
        self._server: ProtocolServer | None = None
        self._carried: list[tuple[_Side, _Side]] = []

    @property
    def is_open(self) -> bool:
        """Whether diallers are let in."""
        return self._server is not None

    def open(self) -> None:
        """Let diallers in."""
        if self._server is None:
            self._server = ProtocolServer(self._accept, self._tasks, self.port)

    def shut(self) -> None:
        """Refuse diallers; connections stay."""
        if self._server is not None:
            server, self._server = self._server, None
            server.stop()

    def cut(self) -> None:
        """End all connections at once; what was held is lost."""
        for near, far in self._carried:
            near.abort()
            far.abort()
        self._carried.clear()

    def close(self) -> None:
        """End everything and give the port back."""
        self.shut()
        self.cut()
        self._reservation.close()

    def _accept(self) -> _Side:
        there, back = _Pipe(self._there), _Pipe(self._back)
        far = _Side(back, there, lambda _: None)
        near = _Side(there, back, lambda side: self._tasks.create_task(self._dial(side, far)))
        self._carried = [
            pair
            for pair in self._carried
            if not (pair[0].has_ended() and (pair[1].transport is None or pair[1].has_ended()))
        ]
        self._carried.append((near, far))
        return near

    async def _dial(self, near: _Side, far: _Side) -> None:
        # A handshake needs both directions.
        await self._there.passable()
        await self._back.passable()
        if near.has_ended():
            near.abort()
            return
        try:
            await asyncio.get_running_loop().create_connection(lambda: far, _LOOPBACK, self._target)
        except OSError:
            near.abort()
            return
        if near.has_ended():
            far.abort()


class Network:
    """Directions and ways between parties, each named; made by `faulty_network`."""

    def __init__(self, targets: Mapping[Pair, int], tasks: asyncio.TaskGroup) -> None:
        """``targets``: for each pair the port at which the second party listens for the first."""
        pairs = {*targets, *((target, source) for source, target in targets)}
        self.directions = {pair: Direction() for pair in pairs}
        self.ways = {
            (source, target): Way(
                port, self.directions[source, target], self.directions[target, source], tasks
            )
            for (source, target), port in targets.items()
        }
        self._down: set[str] = set()
        self._refused: set[Pair] = set()

    def port(self, source: str, target: str) -> int:
        """Return where ``source`` dials ``target``."""
        return self.ways[source, target].port

    def is_down(self, party: str, *, down: bool) -> None:
        """Refuse all who dial ``party``, as its machine does when nobody listens there; or no more."""
        (self._down.add if down else self._down.discard)(party)
        self._listen()

    def refuse(self, pairs: Iterable[Pair]) -> None:
        """Cut the ways of ``pairs`` and refuse who dials again, as a firewall may."""
        self._refused.update(pair for pair in pairs if pair in self.ways)
        self._listen()
        self.cut(self._refused)

    def hold(self, pairs: Iterable[Pair]) -> None:
        """Let nothing arrive in the directions of ``pairs``."""
        for pair in pairs:
            if pair in self.directions:
                self.directions[pair].hold()

    def slow(self, pairs: Iterable[Pair], delay_s: float, bytes_per_s: float | None) -> None:
        """See `Direction.slow`."""
        for pair in pairs:
            if pair in self.directions:
                self.directions[pair].slow(delay_s, bytes_per_s)

    def cut(self, pairs: Collection[Pair]) -> None:
        """End all connections of these ways."""
        for pair in pairs:
            if pair in self.ways:
                self.ways[pair].cut()

    def heal(self, *, lose: bool) -> None:
        """Mend every link; with ``lose`` what was held is lost, and its connections are cut."""
        for (source, target), direction in self.directions.items():
            if lose and direction.is_held:
                self.cut(((source, target), (target, source)))
            direction.slow(0.0, None)
            direction.release()
        self._refused.clear()
        self._listen()

    def _listen(self) -> None:
        for (source, target), way in self.ways.items():
            is_shut = target in self._down or (source, target) in self._refused
            if is_shut:
                way.shut()
            else:
                way.open()


@asynccontextmanager
async def faulty_network(targets: Mapping[Pair, int]) -> AsyncIterator[Network]:
    """A network whose ways are open, until the end of the block."""
    async with asyncio.TaskGroup() as tasks:
        network = Network(targets, tasks)
        try:
            network.heal(lose=False)
            yield network
        finally:
            for direction in network.directions.values():
                direction.release()
            for way in network.ways.values():
                way.close()
