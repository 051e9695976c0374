"""The offsets that a question means now, asked of the node's stream."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from envelope.errors import OffsetOutOfRange, RequestError
from envelope.types import Incarnation, Offset
from jetstream.client.read.places import End, Start, Txid, before_end, parse_end, parse_start, since
from jetstream.client.read.records import to_timestamp
from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.v1.query import RecordsQuery
from jetstream.node.readers.ports import ReadableStream
from jetstream.protocol.requests import ListOffsets
from jetstream.protocol.responses import ListOffsetsResponse

_OFFSET_DIGITS_MAX: Final = 18


@dataclass(frozen=True, slots=True)
class RecordRange:
    """A range of a stream's offsets; ``end`` is exclusive, None has no end."""

    stream: str
    incarnation: Incarnation
    start: Offset
    end: Offset | None
    high_watermark: Offset

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be read."""
        return self.end is not None and self.start >= self.end


@dataclass(frozen=True, slots=True)
class PlaceQuestion:
    """The places that a reader names, parsed."""

    start: Start
    end: End
    follow: bool
    incarnation: str | None

    @classmethod
    def of(cls, query: RecordsQuery, last_event: str | None) -> "PlaceQuestion":
        """Parse the places of ``query``.

        ``last_event`` is the id of the last server-sent event that the reader has; it goes on behind that.

        Raises:
            RequestError: they are no places, or a reader that follows names a time as its end.
        """
        end = None if query.end is None else parse_end(query.end)
        if query.follow and isinstance(end, datetime | timedelta):
            raise RequestError("to: with follow it is an offset: that of a time is not known yet")
        start = parse_start(query.start)
        if last_event is not None:
            start = parse_offset(last_event) + 1
        return cls(start, end, query.follow, query.incarnation)

    def is_settled(self, high_watermark: Offset) -> bool:
        """Return whether any replica gives the same answer: the range is fixed, and committed there."""
        return (
            not self.follow
            and isinstance(self.start, int)
            and isinstance(self.end, int)
            and self.start >= 0
            and 0 <= self.end <= high_watermark
        )


def parse_offset(text: str) -> Offset:
    """Return the offset that ``text`` is.

    Raises:
        RequestError: it is none.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > _OFFSET_DIGITS_MAX:
        raise RequestError(f"{text[:64]!r} is no offset")
    return Offset(int(text))


async def resolve(
    connection: HttpConnection, stream: ReadableStream, question: PlaceQuestion, now: datetime
) -> RecordRange:
    """Return the offsets of ``question``, as of now.

    Raises:
        OffsetOutOfRange: the start is not between the log start and the high watermark.
        StreamRecreated: the stream is not the incarnation that the reader names.
        StreamOffline: this node does not lead the stream any more.
        Forbidden, InvalidTicket: the reader may not read it.
    """
    asked = _Asked(connection, stream.name, question, now)
    bounds = await asked.offsets({"at": "latest" if stream.leads else "earliest"})
    start = await asked.offset(question.start, bounds)
    end: Offset | None = Offset(bounds.high_watermark)
    if question.end is not None:
        end = await asked.offset(question.end, bounds)
    elif question.follow:
        end = None
    if end is not None and not question.follow:
        end = min(end, Offset(bounds.high_watermark))
    if not bounds.log_start_offset <= start <= max(bounds.high_watermark, bounds.offset):
        raise OffsetOutOfRange(
            f"offset {start} is outside [{bounds.log_start_offset}, {bounds.high_watermark}]",
            offset=start,
            log_start_offset=bounds.log_start_offset,
            high_watermark=bounds.high_watermark,
        )
    return RecordRange(
        stream.name, Incarnation(bounds.incarnation), start, end, Offset(bounds.high_watermark)
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    connection: HttpConnection
    stream: str
    question: PlaceQuestion
    now: datetime

    async def offset(self, place: Start, bounds: ListOffsetsResponse) -> Offset:
        """Return the offset at ``place``."""
        log_start_offset, high_watermark = Offset(bounds.log_start_offset), Offset(bounds.high_watermark)
        match since(place, self.now):
            case "earliest":
                return log_start_offset
            case "latest":
                return high_watermark
            case int(offset):
                return Offset(offset) if offset >= 0 else before_end(offset, log_start_offset, high_watermark)
            case Txid(value):
                answer = await self.offsets({"at": "txid", "txid": value})
            case moment:
                assert isinstance(moment, datetime), "a timedelta has become a moment"
                answer = await self.offsets({"at": "timestamp", "timestamp": to_timestamp(moment)})
        return Offset(answer.offset)

    async def offsets(self, place: dict[str, object]) -> ListOffsetsResponse:
        """Ask for an offset, with the bounds of the stream."""
        connection, incarnation = self.connection, self.question.incarnation
        request = ListOffsets.model_validate(
            {"id": next(connection.ids), "stream": self.stream, "incarnation": incarnation, **place}
        )
        response, _ = await connection.ask(request)
        assert isinstance(response, ListOffsetsResponse), "a response has its request's type"
        return response
