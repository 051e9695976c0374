"""Fetches that keep one connection busy: while a reader is behind, several are under way.

They share a cursor, so that each asks for what comes ``next`` before its offset is known:
streams are read at the speed of the disk or the wire instead of a round trip a fetch. At the end
of the stream one fetch waits. The bytes that are requested or have arrived, and are not yet consumed, are
bounded; at the bound the pipeline sends no more requests.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from envelope.errors import DeadlinePassed, JetstreamError, RemoteProtocolError
from envelope.limits import MIB, REQUESTS_IN_FLIGHT_MAX
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.client.nodes.socket_link import Answer, SocketLink
from jetstream.protocol.requests import Column, Fetch
from jetstream.protocol.responses import FetchResponse, Response

_AHEAD_FIRST: Final = 4
_AHEAD_MAX: Final = 32
"""Fetches without a header, of one reader: a few while it is known to be behind, doubled with each answer."""

_IN_FLIGHT_SHARED_MAX: Final = REQUESTS_IN_FLIGHT_MAX // 2
"""Beyond it readers that share a connection have one fetch under way each."""


_READY_MAX: Final = 64
"""Ranges that wait to be taken: of those that a filter has emptied no bytes would count."""


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a reader fetches."""

    max_bytes: int = 4 * MIB
    """Of one fetch; a larger batch comes whole all the same."""
    prefetch_bytes: int = 64 * MIB
    """Asked for or arrived, and not yet taken; at least one fetch is always under way."""
    max_wait_ms: int = 20_000
    """How long a fetch at the end of the stream waits at the node."""
    timeout_s: float = 10.0
    """How long a node may be silent beyond that before the connection counts as lost."""
    short_circuit: bool = True
    """Whether ranges may be read where they lie, if the node is on this machine."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The records and columns that a reader asks for; the node leaves out the others."""

    subject: str | None = None
    key: str | None = None
    columns: tuple[Column, ...] | None = None


@dataclass(frozen=True, slots=True)
class ReaderPlace:
    """Where a reader stands: enough to go on exactly there, and to notice that the history has changed."""

    offset: Offset
    last_epoch: LeaderEpoch | None = None
    incarnation: Incarnation | None = None


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """Where a reader stops, and how far it could read when that was asked."""

    end: Offset | None
    """Exclusive; None has no end."""
    high_watermark: Offset
    leaves: bool = False
    """Whether it stops too where it has caught up with a node that does not lead the stream."""


@dataclass(frozen=True, slots=True)
class FetchedRange:
    """Whole batches covering ``[response.start_offset, response.next_offset)``."""

    response: FetchResponse
    body: memoryview
    """Empty, if the response says where it lies."""

    @property
    def length(self) -> int:
        """Bytes that were sent, or that are read from the node's file."""
        return _length(self.response, len(self.body))


def _length(response: FetchResponse, body_length: int) -> int:
    return body_length if response.file is None else response.file.length


class FetchPipeline:
    """Fetches one stream from a place to an end over one connection, in order.

    Invariants:
        C3: more than one fetch has no header yet only while the place is below the high watermark known last;
            all but the first of them ask for what comes ``next``.
            Held by test_every_fetch_that_names_a_place_names_the_history_it_continues.
        C4: ranges are handed out in order, each beginning where the last one ended.
            Held by test_a_server_that_is_wrong_about_a_range_is_found_out.
        C5: a new fetch leaves only while less than ``prefetch_bytes`` are asked for, arriving, told of or not
            taken; one fetch may always be under way.
            Held by test_socket_server.py.
    """

    def __init__(
        self,
        link: SocketLink,
        stream: str,
        place: ReaderPlace,
        bounds: ReadBounds,
        settings: FetchSettings,
        selection: Wanted,
    ) -> None:
        """Begin to fetch."""
        self._wanted = selection
        self._link = link
        self._stream = stream
        self._place = place
        self._end = bounds.end
        self._leaves = bounds.leaves
        self._has_left = False
        self._settings = settings
        # What is left out is left out by the node: a file has everything.
        self._short_circuit = settings.short_circuit and link.local.usable and selection == Wanted()
        self._cursor = link.next_id()  # a number of its own on this connection
        self._asked: deque[int] = deque()
        self._ahead = _AHEAD_FIRST if place.offset < bounds.high_watermark else 1
        self._arriving: dict[int, int] = {}
        self._ready: deque[FetchedRange] = deque()
        self._ready_bytes = 0
        self._failure: JetstreamError | None = None
        self._stopped = False
        self._progress = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._dropped = weakref.finalize(self, _cancel_soon, loop, link, self._asked)
        """Of a pipeline that is dropped without `stop`."""
        self._dropped.atexit = False
        self.high_watermark = bounds.high_watermark
        """As the node last told it."""
        self.is_served = False
        """A node has answered that there is no reason to leave."""
        self._ask()

    async def take(self) -> FetchedRange | None:
        """Return the next range, waiting for it; the one after it has been asked for by then.

        None: the pipeline has caught up with a node that does not lead, where it is not to stay.

        Raises:
            DeadlinePassed: the node is silent.
            RangeAway: the next range cannot be read where it lies; ask for it over the socket.
            JetstreamError: what the node answered, once everything that came before is taken.
        """
        limit_s = self._settings.max_wait_ms / 1000 + self._settings.timeout_s
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            if self._has_left and not self._arriving:
                return None
            self._progress.clear()
            received = self._link.received
            try:
                async with asyncio.timeout(limit_s):
                    await self._progress.wait()
            except TimeoutError:
                if self._link.received > received:
                    continue  # a large body on a slow line: the node is not silent
                self._link.close()
                raise DeadlinePassed(f"no answer to a fetch of {self._stream!r} in {limit_s:g} s") from None
        fetched = self._ready[0]
        body = await self._body_of(fetched)
        if not self._ready:  # stopped meanwhile
            return None
        self._ready.popleft()
        self._ready_bytes -= fetched.length
        self._ask()
        return replace(fetched, body=body)

    async def _body_of(self, fetched: FetchedRange) -> memoryview:
        where = fetched.response.file
        if where is None:
            return fetched.body
        room = self._link.rooms.take(where.length)
        await self._link.local.read(where, room)
        return room

    def limit(self, max_bytes: int, prefetch_bytes: int) -> None:
        """Set the bytes of one fetch and of the prefetch for later requests."""
        self._settings = replace(self._settings, max_bytes=max_bytes, prefetch_bytes=prefetch_bytes)
        self._ask()

    def stop(self) -> None:
        """Ask for nothing more, and take back what was asked; what still arrives is dropped."""
        self._stopped = True
        self._ready.clear()
        if self._dropped.detach() is not None:
            _cancel(self._link, self._asked)

    def break_off(self) -> None:
        """Close the connection: after damage the beginning of the next response on it is unknown."""
        self._link.close()

    def _ask(self) -> None:
        """Send fetches as long as there is something to ask for and room for the answers."""
        while self._wants_more():
            self._send(self._next_request())

    @property
    def _is_over(self) -> bool:
        return self._stopped or self._has_left or self._failure is not None

    def _wants_more(self) -> bool:
        if self._is_over:
            return False
        if self._end is not None and self._place.offset >= self._end:
            return False
        if len(self._ready) >= _READY_MAX:
            return False
        held = self._ready_bytes + sum(self._arriving.values())
        if not self._asked:
            return held < self._settings.prefetch_bytes
        asked = len(self._asked)
        return (
            asked < self._ahead
            and held + asked * self._settings.max_bytes < self._settings.prefetch_bytes
            and self._link.in_flight < _IN_FLIGHT_SHARED_MAX
        )

    def _next_request(self) -> Fetch:
        """Return the fetch after those that were asked for: from a known place, or from wherever they end."""
        place = None if self._asked else self._place
        return Fetch(
            id=self._link.next_id(),
            stream=self._stream,
            offset="next" if place is None else place.offset,
            cursor=self._cursor,
            end=self._end,
            max_bytes=self._settings.max_bytes,
            max_wait_ms=self._settings.max_wait_ms,
            last_epoch=None if place is None else place.last_epoch,
            incarnation=self._place.incarnation,
            subject=self._wanted.subject,
            key=self._wanted.key,
            columns=None if self._wanted.columns is None else list(self._wanted.columns),
            short_circuit=True if self._short_circuit else None,
        )

    def _send(self, request: Fetch) -> None:
        # Weak, so that a reader its application has dropped does not go on fetching.
        told_start, told_end = weakref.WeakMethod(self._on_started), weakref.WeakMethod(self._on_done)

        def on_started(response: Response, body_length: int) -> None:
            if listener := told_start():
                listener(response, body_length)

        def on_done(outcome: Answer | JetstreamError) -> None:
            if listener := told_end():
                listener(outcome)

        try:
            self._link.send(request, on_done, on_started)
        except JetstreamError as error:
            self._fail(error)
        else:
            self._asked.append(request.id)

    def _on_started(self, response: Response, body_length: int) -> None:
        """Move the place on and ask for what comes next, while the body arrives."""
        assert isinstance(response, FetchResponse), "C1: a response has its request's type"
        if self._is_over:
            return
        place = self._place
        empty = response.next_offset == place.offset and body_length == 0
        if response.id != self._asked.popleft():
            self._fail(RemoteProtocolError(f"the answers of cursor {self._cursor} are not in order"))
            return
        problem = self._contradiction(response, body_length, empty=empty)
        if problem is not None:
            self._fail(RemoteProtocolError(f"wanted offset {place.offset}, got {problem}"))
            return
        self.high_watermark = Offset(response.high_watermark)
        self._ahead = min(2 * self._ahead, _AHEAD_MAX) if response.next_offset < self.high_watermark else 1
        if not empty:
            self._arriving[response.id] = _length(response, body_length)
        self._place = ReaderPlace(
            Offset(response.next_offset),
            place.last_epoch if empty else LeaderEpoch(response.epoch),
            Incarnation(response.incarnation),
        )
        is_caught_up = response.next_offset >= response.high_watermark
        self._has_left = self._leaves and is_caught_up and response.leads is False
        self.is_served |= not self._has_left
        self._ask()

    def _contradiction(self, response: FetchResponse, body_length: int, *, empty: bool) -> str | None:
        """Return the contradiction in a response's header, None if there is none."""
        place = self._place
        if place.incarnation not in (None, response.incarnation):
            return f"incarnation {response.incarnation!r} instead of {place.incarnation!r}"
        if empty:
            return None
        if not response.start_offset <= place.offset < response.next_offset:
            return f"[{response.start_offset}, {response.next_offset})"
        if response.records == 0 and self._wanted == Wanted():
            return "nothing, although nothing was to be left out"
        if response.file is not None and (body_length or not self._short_circuit):
            return "a file that was not asked for, or one beside a body"
        return None

    def _on_done(self, outcome: Answer | JetstreamError) -> None:
        if self._stopped or self._failure is not None:
            return
        if isinstance(outcome, JetstreamError):
            self._fail(outcome)
            return
        response = outcome.response
        assert isinstance(response, FetchResponse), "C1: a response has its request's type"
        if self._arriving.pop(response.id, None) is not None:
            fetched = FetchedRange(response, outcome.body)
            self._ready.append(fetched)
            self._ready_bytes += fetched.length
        self._progress.set()
        self._ask()

    def _fail(self, error: JetstreamError) -> None:
        """End with ``error`` once what came before is taken; what is still under way is dropped."""
        self._failure = error
        self._progress.set()


def _cancel(link: SocketLink, request_ids: Iterable[int]) -> None:
    """Take fetches back, the last one first: behind one that is gone the next would begin nowhere."""
    link.cancel(sorted(request_ids, reverse=True))


def _cancel_soon(loop: asyncio.AbstractEventLoop, link: SocketLink, request_ids: Iterable[int]) -> None:
    """Do so from whichever thread collects the garbage."""
    with suppress(RuntimeError):  # the loop is closed, and with it the connection
        loop.call_soon_threadsafe(_cancel, link, request_ids)
