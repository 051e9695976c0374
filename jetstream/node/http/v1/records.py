"""``GET /v1/streams/{name}/records``: from the question to the last byte of the body."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Final
from urllib.parse import urlencode

from envelope.errors import JetstreamError, NotReplica, StreamOffline, UnknownStream
from envelope.limits import KIB
from envelope.types import Compact, Incarnation, NodeId, Offset
from jetstream.fetch.planner import check_incarnation
from jetstream.node.disk.leased_range import Body
from jetstream.node.http.connection import HttpConnection
from jetstream.node.http.page import Page, plain
from jetstream.node.http.request import HttpRequest
from jetstream.node.http.v1.bodies import BodyShape, body_shape
from jetstream.node.http.v1.places import PlaceQuestion, RecordRange, parse_offset, resolve
from jetstream.node.http.v1.query import BodyFormat, RecordsQuery, body_format, parameters, records_query
from jetstream.node.http.v1.reading import NO_PART, Choice, Part, RangeReader
from jetstream.node.http.v1.value import value_page
from jetstream.node.readers.ports import ReadableStream, StreamDirectory
from jetstream.node.readers.responses import find_stream
from metadata.catalog.tables import Stream

_log = logging.getLogger(__name__)

_HELD_BYTES_MAX: Final = 256 * KIB
"""Of a response with a limit, before its head is sent."""
_FOR_EVER: Final = "max-age=31536000, immutable"

NEXT_OFFSET: Final = "jetstream-next-offset"
"""Where a reader that has the response goes on."""
_ERROR: Final = "jetstream-error"
_TRAILER: Final = ("trailer", f"{NEXT_OFFSET}, {_ERROR}")

HttpAddress = Callable[[NodeId], str | None]
"""Returns the ``http://host:port`` of a node; None: it has no such port."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A request for records, understood."""

    query: RecordsQuery
    places: PlaceQuestion
    format: BodyFormat
    shape: BodyShape

    @classmethod
    def of(cls, request: HttpRequest) -> "_Question":
        query = records_query(request.query)
        wanted_format = body_format(query, request.header("accept"))
        places = PlaceQuestion.of(query, request.header("last-event-id"))
        return cls(query, places, wanted_format, body_shape(wanted_format, query.wanted_columns))

    def page(self, records: RecordRange, *, is_dense: bool) -> tuple[RecordRange, Choice]:
        """Return the part of a range that the limit leaves, and the records of it that are wanted.

        ``is_dense``: each offset has a record. Where all are wanted, too, the limit is one of offsets, and
        the end of the part is known before it is read.
        """
        query, limit, page = self.query, self.query.limit, records
        is_filtered = query.subject is not None or query.key is not None
        if limit is not None and records.end is not None and is_dense and not is_filtered:
            page, limit = replace(records, end=Offset(min(records.end, records.start + limit))), None
        choice = Choice(
            subject=query.subject,
            key=query.key,
            columns=query.wanted_columns,
            limit=limit,
            encode=self.shape.encode,
        )
        return page, choice


class RecordsEndpoint:
    """Answers requests for the records of streams; used on the loop's thread."""

    def __init__(
        self, streams: StreamDirectory, now: Callable[[], datetime], address_of: HttpAddress
    ) -> None:
        self._streams = streams
        self._now = now
        self._address_of = address_of

    async def answer(self, connection: HttpConnection, request: HttpRequest, name: str) -> None:
        """Answer a request for records of a stream.

        Raises:
            JetstreamError: a refusal, before anything was sent.
        """
        question = _Question.of(request)
        row = self._row(name)
        stream = self._stream_here(row, question.places)
        if stream is None:
            await connection.send(self._elsewhere(row, request), is_head=request.is_head)
            return
        records = await resolve(connection, stream, question.places, self._now())
        is_dense = row.config.compact is Compact.NONE
        # What a ticket leaves out is not in the URL: no cache may take the rest for all.
        is_sealed = is_dense and connection.rights.sees_all and _is_sealed(stream, records)
        page, choice = question.page(records, is_dense=is_dense)
        await _Response(connection, question, records, RangeReader(connection, page, choice), is_sealed).send(
            request
        )

    async def value(self, connection: HttpConnection, request: HttpRequest, name: str, offset: str) -> None:
        """Answer with the value of one record as it is, under the content type that its header names.

        Raises:
            UnknownRecord: there is no record at the offset any more, or its value is null.
            JetstreamError: it cannot be read here.
        """
        start = parse_offset(offset)
        places = PlaceQuestion(start, start + 1, False, None)
        row = self._row(name)
        stream = self._stream_here(row, places)
        if stream is None:
            await connection.send(self._elsewhere(row, request), is_head=request.is_head)
            return
        records = await resolve(connection, stream, places, self._now())
        reader = RangeReader(connection, records, Choice(columns=["headers", "value"], limit=1))
        part = NO_PART if reader.is_over else await reader.part()
        try:
            page = value_page(part.body, name, start)
        finally:
            connection.drop(part.body)
        await connection.send(page, is_head=request.is_head)

    def _row(self, name: str) -> Stream:
        row = self._streams.row(name)
        if row is None:
            raise UnknownStream(f"there is no stream {name[:256]!r}")
        return row

    def _stream_here(self, row: Stream, places: PlaceQuestion) -> ReadableStream | None:
        """Return the stream, if this node is one to read it at.

        Raises:
            StreamRecreated: the stream is not the incarnation that the reader names.
            StreamOffline: its log is not open here.
        """
        name = row.name
        try:
            stream = find_stream(self._streams, name)
        except NotReplica:
            return None
        incarnation = places.incarnation
        check_incarnation(None if incarnation is None else Incarnation(incarnation), stream.view())
        return stream if stream.leads or places.is_settled(stream.high_watermark) else None

    def _elsewhere(self, row: Stream, request: HttpRequest) -> Page:
        """Return the way to the stream's leader.

        Raises:
            StreamOffline: there is none.
            NotReplica: it has no HTTP port.
        """
        if row.leader is None:
            raise StreamOffline(f"stream {row.name} has no leader now")
        address = self._address_of(row.leader)
        if address is None:
            text = f"node {row.leader} leads stream {row.name}, and has no HTTP port"
            raise NotReplica(text, leader=row.leader)
        text = f"node {row.leader} leads the stream"
        return plain(HTTPStatus.TEMPORARY_REDIRECT, text, ("location", address + request.target))


@dataclass(slots=True)
class _Response:
    """The response to one question."""

    connection: HttpConnection
    question: _Question
    records: RecordRange
    """All that was asked for, without the limit."""
    reader: RangeReader
    is_sealed: bool

    async def send(self, request: HttpRequest) -> None:
        """Send it; an error that comes after the head ends it where it is."""
        headers = self._headers()
        if self.is_sealed:
            tag = self._tag()
            is_open = request.header("authorization") is None
            headers += [("etag", tag), ("cache-control", self._cache_control(is_open=is_open))]
            if tag in (request.header("if-none-match") or ""):
                self.connection.begin(HTTPStatus.NOT_MODIFIED, headers)
                self.connection.end()
                return
        else:
            headers.append(("cache-control", "no-store"))
        if request.is_head:
            self.connection.begin(HTTPStatus.OK, headers)
            self.connection.end()
        elif self.question.query.follow:
            await self._follow(headers)
        else:
            await self._read(headers, request)

    async def _read(self, headers: list[tuple[str, str]], request: HttpRequest) -> None:
        reader, shape = self.reader, self.question.shape
        first = await self._first_parts() if reader.choice.limit is not None else b""
        end = reader.next if reader.is_over else reader.range.end
        assert end is not None, "only a reader that follows has no end"
        if reader.is_over or reader.choice.limit is None:
            headers += self._next(request, end)
        else:
            headers.append(_TRAILER)
        first_part = NO_PART if first or reader.is_over else await reader.part()
        self.connection.begin(HTTPStatus.OK, headers)
        if shape.begin + first:
            await self.connection.write(shape.begin + first)
        try:
            await self._write(first_part)
            async for part in reader.parts():
                await self._write(part)
        except JetstreamError as error:
            # The body has begun: without its end the peer knows that it is not whole.
            _log.info("http response broken off stream=%s error=%r", self.records.stream, error)
            self.connection.close()
            return
        if shape.end:
            await self.connection.write(shape.end)
        self.connection.end(self._trailers())

    async def _first_parts(self) -> bytes:
        """Read what a limit leaves, as long as it is little: where it ends is then said before it is sent."""
        parts, reader = bytearray(), self.reader
        while not reader.is_over and len(parts) < _HELD_BYTES_MAX:
            part = await reader.part()
            assert not isinstance(part.body, Body), "records are counted where they are decoded"
            parts += part.body
            self.connection.drop(part.body)
        return bytes(parts)

    async def _follow(self, headers: list[tuple[str, str]]) -> None:
        """Send records as they come; an error ends the response, and says where to go on."""
        connection, shape = self.connection, self.question.shape
        connection.is_endless = True
        connection.begin(HTTPStatus.OK, [*headers, _TRAILER])
        if shape.begin:
            await connection.write(shape.begin)
        connection.flush()
        error: JetstreamError | None = None
        try:
            async for part in self.reader.parts():
                await self._write(part)
                if not part.records and shape.keep_alive:
                    await connection.write(shape.keep_alive)
        except JetstreamError as caught:
            error = caught
            _log.info("http response ended stream=%s error=%r", self.records.stream, error)
        if shape.end:
            await connection.write(shape.end)
        connection.end(self._trailers(error))

    async def _write(self, part: Part) -> None:
        if part.body != b"":
            await self.connection.write(part.body)

    def _next(self, request: HttpRequest, offset: Offset) -> list[tuple[str, str]]:
        """Return the headers that say where to go on, and the way to the rest, if the limit leaves any."""
        headers, end = [(NEXT_OFFSET, str(offset))], self.records.end
        if end is not None and offset < end:
            given = parameters(request.query)
            given |= {"from": str(offset), "to": str(end), "incarnation": self.records.incarnation}
            headers.append(("link", f'<{request.raw_path}?{urlencode(given)}>; rel="next"'))
        return headers

    def _headers(self) -> list[tuple[str, str]]:
        records = self.records
        headers = [
            ("content-type", self.question.format.media_type),
            ("vary", "accept, authorization"),
            ("x-content-type-options", "nosniff"),
            ("jetstream-incarnation", records.incarnation),
            ("jetstream-start-offset", str(records.start)),
            ("jetstream-high-watermark", str(records.high_watermark)),
        ]
        if records.end is not None:
            headers.append(("jetstream-end-offset", str(records.end)))
        return headers

    def _trailers(self, error: JetstreamError | None = None) -> list[tuple[str, str]]:
        ended = [] if error is None else [(_ERROR, error.err_code)]
        return [(NEXT_OFFSET, str(self.reader.next)), *ended]

    def _tag(self) -> str:
        """Return a weak tag: batches may be put together anew, records of a sealed range stay."""
        query, records = self.question.query, self.records
        choice = (query.subject, query.key, query.columns, query.limit, self.question.format)
        digest = hashlib.sha256(repr(choice).encode()).hexdigest()[:16]
        return f'W/"{records.incarnation}-{records.start}-{records.end}-{digest}"'

    def _cache_control(self, *, is_open: bool) -> str:
        """Return how long caches may keep it: for ever, where the URL says which records they are.

        ``is_open``: the request shows no credential, and so needs none.
        """
        places = self.question.places
        if places.incarnation is None or not places.is_settled(self.records.high_watermark):
            return "no-cache"
        return f"{'public' if is_open else 'private'}, {_FOR_EVER}"


def _is_sealed(stream: ReadableStream, records: RecordRange) -> bool:
    """Return whether a range lies in segments to which nothing is appended."""
    segments = stream.log.reader.segments
    if records.end is None or not segments:
        return False
    last = segments[-1]
    return records.end <= (last.next if last.sealed else last.base)
