"""The cursors of consumers, on the node that leads their stream: a table that follows the high watermark.

When a reign begins the table is filled from the log, on a reader thread. An answer is given only from a table
that has everything which was committed when it was asked for.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from consumer_groups.cursors import Cursor, CursorRecord, CursorTable, read_record, selected
from envelope.errors import JetstreamError, NotLeader, UnavailableError
from envelope.internal_streams import CURSORS
from envelope.types import Offset
from jetstream.log.reader import LogReader
from jetstream.log.segments.segment import PlanAgain
from jetstream.node.groups.latest_records import read_latest
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.replicas.replica import StreamReplica
from metadata.api.requests import CursorQuestion, GetCursorRequest, ListCursorsRequest
from metadata.api.responses import CursorInfo, ListCursorsResponse, cursor_page, utc

_log = logging.getLogger(__name__)

_WAIT_SECONDS: Final = 0.8
"""How long a question waits for the table: less than another node waits for the answer, which asks again."""
_LOOK_SECONDS: Final = 0.05
_IDLE_SECONDS: Final = 30.0
"""After that the table of a reign that is over is dropped, if nothing has told of its end before."""


@dataclass(slots=True)
class _Followed:
    """The cursors of one reign."""

    leading: LeadingStream
    table: CursorTable = field(default_factory=CursorTable)
    problem: JetstreamError | None = None
    """Why the log could not be read any further."""


class CursorStore:
    """Used on the loop's thread; `run` follows the stream as long as this node leads it."""

    def __init__(self, find: Callable[[str], StreamReplica | None], readers: Executor) -> None:
        """Find the stream's replica by ``find``, which raises as `Streams.stream`."""
        self._find = find
        self._readers = readers
        self._followed: _Followed | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()

    @property
    def cursors(self) -> int:
        """Number of cursors that this node can tell; 0 where another one leads."""
        return len(self._followed.table) if self._followed is not None else 0

    @property
    def unreadable(self) -> int:
        """Keys whose last value this version cannot read."""
        return self._followed.table.unreadable if self._followed is not None else 0

    # --- following ---------------------------------------------------------------------------------

    def reign_begun(self, leading: LeadingStream) -> None:
        """Handle the begin of this node's reign over a stream."""
        if leading.context.name != CURSORS:
            return
        self._unsubscribe()
        self._followed = _Followed(leading)
        self._unsubscribe = leading.context.watch(lambda _: self._wake.set())
        self._wake.set()

    async def run(self) -> None:
        """Follow the stream until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            if self._followed is not None:
                await self._catch_up(self._followed)
                self._progress.set()

    async def _catch_up(self, followed: _Followed) -> None:
        """Read up to the high watermark, or as far as that is possible."""
        loop = asyncio.get_running_loop()
        table, leading = followed.table, followed.leading
        while followed is self._followed:
            if not self._leads(followed):
                self._followed = None  # what it has is of no use to anybody
                return
            if table.end >= leading.high_watermark:
                return
            read = partial(_read, leading.context.log.reader, table.end, leading.high_watermark)
            try:
                records, end = await loop.run_in_executor(self._readers, read)
            except PlanAgain:
                continue
            except JetstreamError as error:
                _log.error("cursors not read offset=%d error=%s runbook=RB-01", table.end, error)
                followed.problem = error
                return
            if end == table.end:
                return  # a batch reaches beyond the high watermark
            table.replay(records, end)
            followed.problem = None
            self._progress.set()

    def _leads(self, followed: _Followed) -> bool:
        with suppress(JetstreamError):
            replica = self._find(CURSORS)
            return replica is not None and replica.leading is followed.leading
        return False

    # --- answering ---------------------------------------------------------------------------------

    async def answer(self, request: CursorQuestion) -> CursorInfo | ListCursorsResponse:
        """Answer with what was committed when this was called, or something newer.

        Raises:
            NotLeader: another node can tell.
            UnavailableError: the table is not filled yet, or nobody knows what is committed.
            CorruptDataError: damage in the stream, or a cursor of another version of the format.
        """
        table = await self._committed()
        match request:
            case GetCursorRequest(consumer=consumer, stream=stream):
                cursor = table.get(consumer, stream)
                if cursor is None:
                    return CursorInfo(consumer=consumer, stream=stream, offset=None)
                return _info(cursor)
            case ListCursorsRequest():
                page = partial(_page, request, table.all())
                return await asyncio.get_running_loop().run_in_executor(self._readers, page)

    async def _committed(self) -> CursorTable:
        """Return the table once it has all that was committed when this was called."""
        replica, _ = self._led()
        # One that was cut off may not know yet that another leads, and acks.
        await replica.confirm_leadership()
        wanted: Offset | None = None
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while True:
                    replica, followed = self._led()
                    if wanted is None and replica.has_committed_own_epoch:
                        wanted = replica.high_watermark
                    if wanted is not None and followed.table.end >= wanted:
                        return followed.table
                    await self._progressed(followed)
        except TimeoutError:
            raise UnavailableError("the cursors are being read: a reign has just begun") from None

    def _led(self) -> tuple[StreamReplica, _Followed]:
        replica = self._find(CURSORS)
        if replica is None or replica.leading is None or not replica.leads:
            raise NotLeader("this node does not lead the stream of cursors")
        if self._followed is None or self._followed.leading is not replica.leading:
            self.reign_begun(replica.leading)
        assert self._followed is not None, "a reign is followed"
        return replica, self._followed

    async def _progressed(self, followed: _Followed) -> None:
        """Return when the table may have more; what stops it is tried again, and told if it stays."""
        before, followed.problem = followed.problem, None
        self._progress.clear()
        self._wake.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_SECONDS):
                await self._progress.wait()
        if before is not None and followed.problem is not None:
            raise followed.problem


# --- on a reader thread -------------------------------------------------------------------------------


def _read(log: LogReader, offset: Offset, end: Offset) -> tuple[Sequence[CursorRecord], Offset]:
    """Return what the next records below ``end`` say; as `read_latest`."""
    records, reached = read_latest(log, offset, end)
    found = (read_record(*record) for record in records)
    return [cursor for cursor in found if cursor is not None], reached


def _page(request: ListCursorsRequest, cursors: Sequence[Cursor]) -> ListCursorsResponse:
    matching = selected(cursors, request.consumer, request.stream)
    return cursor_page(request, len(matching), map(_info, matching[request.offset :]))


def _info(cursor: Cursor) -> CursorInfo:
    return CursorInfo(
        consumer=cursor.key.consumer,
        stream=cursor.key.stream,
        offset=cursor.place.offset,
        incarnation=cursor.place.incarnation,
        metadata=cursor.place.metadata,
        committed_at=utc(cursor.committed_at),
    )
