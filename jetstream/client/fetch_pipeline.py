"""Fetches that keep one connection busy: the next one leaves when the header of the last one arrives.

The header says where the next fetch begins, so the request for it travels while the body is still on its
way: reading streams at the speed of the disk or the wire instead of waiting out a round trip a fetch. What
has arrived and is not yet taken is bounded in bytes; at the bound the pipeline stops asking.
"""

import asyncio
import weakref
from collections import deque
from dataclasses import dataclass

from envelope.errors import DeadlinePassed, JetstreamError, RemoteProtocolError
from envelope.limits import MIB
from envelope.types import Incarnation, LeaderEpoch, Offset
from jetstream.client.socket_link import Answer, SocketLink
from jetstream.protocol.requests import Column, Fetch
from jetstream.protocol.responses import FetchResponse, Response


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How a reader fetches."""

    max_bytes: int = 4 * MIB
    """Of one fetch; a larger batch comes whole all the same."""
    prefetch_bytes: int = 16 * MIB
    """Asked for or arrived, and not yet taken; at least one fetch is always under way."""
    max_wait_ms: int = 5_000
    """How long a fetch at the end of the stream waits at the node."""
    timeout_s: float = 10.0
    """How long a node may be silent beyond that before the connection counts as lost."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which records and columns a reader wants; the node leaves out the others."""

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
class FetchedRange:
    """Whole batches covering ``[response.start_offset, response.next_offset)``."""

    response: FetchResponse
    body: memoryview


class FetchPipeline:
    """Fetches one stream from a place to an end over one connection, in order.

    Invariants:
        C3: at most one fetch has no header yet: only its header says where the next one begins.
        C4: ranges are handed out in order, each beginning where the last one ended.
        C5: a new fetch leaves only while less than ``prefetch_bytes`` have arrived or are arriving.
    """

    def __init__(
        self,
        link: SocketLink,
        stream: str,
        place: ReaderPlace,
        end: Offset | None,
        settings: FetchSettings,
        wanted: Wanted,
    ) -> None:
        """Begin to fetch; ``end`` is exclusive, None has no end."""
        self._wanted = wanted
        self._link = link
        self._stream = stream
        self._place = place
        self._end = end
        self._settings = settings
        self._asking = False
        self._arriving: dict[int, int] = {}
        self._ready: deque[FetchedRange] = deque()
        self._ready_bytes = 0
        self._failure: JetstreamError | None = None
        self._stopped = False
        self._progress = asyncio.Event()
        self.high_watermark = Offset(0)
        """As the node last told it."""
        self._ask()

    async def take(self) -> FetchedRange:
        """Return the next range, waiting for it; the one after it has been asked for by then.

        Raises:
            DeadlinePassed: the node is silent.
            JetstreamError: what the node answered, once everything that came before is taken.
        """
        limit_s = self._settings.max_wait_ms / 1000 + self._settings.timeout_s
        while not self._ready:
            if self._failure is not None:
                raise self._failure
            self._progress.clear()
            try:
                async with asyncio.timeout(limit_s):
                    await self._progress.wait()
            except TimeoutError:
                self._link.close()
                raise DeadlinePassed(f"no answer to a fetch of {self._stream!r} in {limit_s:g} s") from None
        fetched = self._ready.popleft()
        self._ready_bytes -= len(fetched.body)
        self._ask()
        return fetched

    def stop(self) -> None:
        """Ask for nothing more; what still arrives is dropped."""
        self._stopped = True
        self._ready.clear()

    def _ask(self) -> None:
        """Send the next fetch if there is one to send and room for its answer."""
        place = self._place
        if self._asking or self._stopped or self._failure is not None:
            return
        if self._end is not None and place.offset >= self._end:
            return
        if self._ready_bytes + sum(self._arriving.values()) >= self._settings.prefetch_bytes:
            return
        request = Fetch(
            id=self._link.next_id(),
            stream=self._stream,
            offset=place.offset,
            max_bytes=self._settings.max_bytes,
            max_wait_ms=self._settings.max_wait_ms,
            last_epoch=place.last_epoch,
            incarnation=place.incarnation,
            subject=self._wanted.subject,
            key=self._wanted.key,
            columns=None if self._wanted.columns is None else list(self._wanted.columns),
        )
        # Weak, so that a reader its application has dropped does not go on fetching.
        told_start, told_end = weakref.WeakMethod(self._on_started), weakref.WeakMethod(self._on_done)

        def on_started(response: Response, body_length: int) -> None:
            if tell := told_start():
                tell(response, body_length)

        def on_done(outcome: Answer | JetstreamError) -> None:
            if tell := told_end():
                tell(request, outcome)

        try:
            self._link.send(request, on_done, on_started)
        except JetstreamError as error:
            self._fail(error)
        else:
            self._asking = True

    def _on_started(self, response: Response, body_length: int) -> None:
        """Move the place on and ask for what comes next, while the body arrives."""
        assert isinstance(response, FetchResponse), "C1: a response has its request's type"
        assert self._asking, "C3: this is the fetch without a header"
        self._asking = False
        place = self._place
        empty = response.next_offset == place.offset and body_length == 0
        if not empty and not response.start_offset <= place.offset < response.next_offset:
            self._fail(
                RemoteProtocolError(
                    f"asked for offset {place.offset}, got [{response.start_offset}, {response.next_offset})"
                )
            )
            return
        self.high_watermark = Offset(response.high_watermark)
        self._arriving[response.id] = body_length
        self._place = ReaderPlace(
            Offset(response.next_offset),
            place.last_epoch if empty else LeaderEpoch(response.epoch),
            Incarnation(response.incarnation),
        )
        self._ask()

    def _on_done(self, request: Fetch, outcome: Answer | JetstreamError) -> None:
        self._arriving.pop(request.id, None)
        if self._stopped:
            return
        if isinstance(outcome, JetstreamError):
            self._asking = False
            self._fail(outcome)
            return
        response = outcome.response
        assert isinstance(response, FetchResponse), "C1: a response has its request's type"
        if self._failure is None and response.next_offset > request.offset:
            self._ready.append(FetchedRange(response, outcome.body))
            self._ready_bytes += len(outcome.body)
        self._progress.set()
        self._ask()

    def _fail(self, error: JetstreamError) -> None:
        if self._failure is None:
            self._failure = error
        self._progress.set()
