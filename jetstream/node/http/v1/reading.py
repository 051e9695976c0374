"""Reading a range for a response: one fetch after the other, as a reader at the socket does."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from envelope.errors import JetstreamError
from envelope.limits import MIB
from envelope.types import LeaderEpoch, Offset
from jetstream.fetch.selection import Encoder
from jetstream.node.disk.leased_range import Body
from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.v1.places import RecordRange
from jetstream.node.http.v1.query import COLUMNS
from jetstream.protocol.requests import Column, Fetch
from jetstream.protocol.responses import FetchResponse

_FETCH_BYTES: Final = 4 * MIB
WAIT_MS: Final = 45_000
"""How long a fetch of a reader that follows waits for records."""
_PATIENCE_S: Final = 5.0
"""How long errors that may pass are met with another attempt, while nothing comes."""
_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The records of a range that are wanted, and the encoding of their bodies."""

    subject: str | None = None
    key: str | None = None
    columns: list[Column] | None = None
    limit: int | None = None
    encode: Encoder | None = None
    """None: stored batches, as they are where nothing is left out."""

    @property
    def is_everything(self) -> bool:
        """Whether batches may be sent as they are stored."""
        leaves_out = self.subject is not None or self.key is not None or self.columns is not None
        return not leaves_out and self.limit is None and self.encode is None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a body: file range, selected answer, or nothing, and where the next one begins."""

    body: Body | bytes | memoryview
    records: int
    """Of a file range the offsets in it."""
    next: Offset


NO_PART: Final = Part(b"", 0, Offset(0))


@dataclass(slots=True)
class RangeReader:
    """Reads a range from its start to its end, or for ever.

    Attributes:
        next: offset at which the next part begins.
        left: records that may still come; None is any number.
    """

    connection: HttpConnection
    range: RecordRange
    choice: Choice
    next: Offset = field(init=False)
    left: int | None = field(init=False)
    _epoch: LeaderEpoch | None = field(init=False, default=None)
    """Of the record before ``next``, once one was read."""
    _failing_since: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        """Begin at the start of the range."""
        self.next, self.left = self.range.start, self.choice.limit

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come."""
        end = self.range.end
        return self.left == 0 or (end is not None and self.next >= end)

    async def parts(self) -> AsyncIterator[Part]:
        """Yield the parts; an empty one tells that no record has come for a while.

        Raises:
            JetstreamError: the rest cannot be read here; what may pass is raised after `_PATIENCE_S`.
        """
        while not self.is_over:
            yield await self.part()

    async def part(self) -> Part:
        """Return the next part; raises as `parts`."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                part = await self._part()
            except JetstreamError as error:
                self._failing_since = self._failing_since or loop.time()
                is_hopeless = not error.retriable or self.connection.is_stopping
                if is_hopeless or loop.time() - self._failing_since >= _PATIENCE_S:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                self._failing_since = None
                return part

    async def _part(self) -> Part:
        if not self.choice.is_everything:
            return self._taken(*await self._fetched(is_exact=True))
        answer, body = await self._fetched(is_exact=False)
        end = self.range.end
        if answer.start_offset < self.next or (end is not None and answer.next_offset > end):
            self.connection.drop(body)
            answer, body = await self._fetched(is_exact=True)
        return self._taken(answer, body)

    async def _fetched(self, *, is_exact: bool) -> tuple[FetchResponse, Body | bytes | memoryview]:
        """Fetch from `next` on: whole batches, or the records that are wanted and no others."""
        choice, end, limit = self.choice, self.range.end, self.left
        if not is_exact and end is not None:
            limit = end - self.next  # in whole batches: one at least, which may reach beyond the end
        columns = choice.columns
        if is_exact and choice.encode is None and columns is None:
            columns = list(COLUMNS)  # leaves nothing out, and has the records decoded
        request = Fetch(
            id=next(self.connection.ids),
            stream=self.range.stream,
            offset=self.next,
            end=end,
            max_bytes=_FETCH_BYTES,
            max_records=limit,
            max_wait_ms=WAIT_MS,
            subject=choice.subject,
            key=choice.key,
            columns=columns,
            last_epoch=self._epoch,
            incarnation=self.range.incarnation,
        )
        answer, body = await self.connection.ask(request, choice.encode)
        assert isinstance(answer, FetchResponse), "a response has its request's type"
        return answer, body

    def _taken(self, answer: FetchResponse, body: Body | bytes | memoryview) -> Part:
        if answer.next_offset > self.next:
            self._epoch = LeaderEpoch(answer.epoch)
        self.next = Offset(answer.next_offset)
        if self.left is not None:
            self.left -= answer.records
        return Part(body, answer.records, self.next)
