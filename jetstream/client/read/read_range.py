"""The beginning and the end of a read: as the application wrote them, and as offsets now."""

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal, get_args

from envelope.errors import DeadlinePassed, NotLeader, RemoteProtocolError, RequestError
from envelope.subjects import validated_pattern
from envelope.types import Incarnation, Offset, TimestampUs
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.client.read.fetch_pipeline import ReaderPlace, Wanted
from jetstream.client.read.places import (
    End,
    Start,
    Txid,
    before_end,
    named_offset,
    since,
    validated_end,
    validated_start,
)
from jetstream.client.read.records import to_timestamp
from jetstream.protocol.requests import NAME_CHARS_MAX, Column, Fetch, ListOffsets
from jetstream.protocol.responses import ListOffsetsResponse


@dataclass(frozen=True, slots=True)
class ReadRange:
    """The range of a stream that the application reads."""

    stream: str
    start: Start = "earliest"
    end: End = None
    follow: bool = False
    incarnation: str | None = None
    wanted: Wanted = field(default_factory=Wanted)

    def validated(self) -> "ReadRange":
        """Return self.

        Raises:
            RequestError: a place or a selection that is none.
        """
        self._check_selection()
        validated_start(self.start)
        validated_end(self.end)
        return self

    def _check_selection(self) -> None:
        wanted = self.wanted
        if wanted.subject is not None:
            validated_pattern(wanted.subject)
        if wanted.key is not None and len(wanted.key) > NAME_CHARS_MAX:
            raise RequestError(f"a key of {len(wanted.key)} characters, a fetch carries {NAME_CHARS_MAX}")
        unknown = [name for name in wanted.columns or () if name not in get_args(Column)]
        if unknown:
            raise RequestError(f"columns: {unknown}: there are {', '.join(get_args(Column))}")


@dataclass(frozen=True, slots=True)
class ResolvedRange:
    """Which offsets that is."""

    place: ReaderPlace
    end: Offset | None
    """Exclusive; None has no end."""
    end_timestamp: TimestampUs | None
    """Exclusive; set where the end is a moment that may not have come yet."""
    high_watermark: Offset


async def resolve(
    read_range: ReadRange, link: SocketLink, timeout_s: float, *, leader_only: bool
) -> ResolvedRange:
    """Ask the node which offsets ``read_range`` means now, with ``timeout_s`` for all its answers.

    Raises:
        NotLeader: the node does not lead the stream, and with ``leader_only`` another one's answer will not
            do: it may have missed the last records.
        DeadlinePassed: the node is silent; the connection is closed.
        RemoteProtocolError: the node contradicts itself.
        OffsetOutOfRange: the start offset is not between the log start and the log end.
        StreamRecreated: the stream is not the incarnation the reader named.
        UnknownStream: there is none.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _resolve(_Asked(read_range, link, leader_only))
    except TimeoutError:
        link.close()
        raise DeadlinePassed(f"no offsets of {read_range.stream!r} in {timeout_s:g} s") from None


@dataclass(frozen=True, slots=True)
class _Asked:
    wanted: ReadRange
    link: SocketLink
    leader_only: bool

    async def offsets(self, at: Literal["earliest", "latest"] | datetime | Txid) -> ListOffsetsResponse:
        named: dict[str, object] = {"at": at}
        if isinstance(at, datetime):
            named = {"at": "timestamp", "timestamp": to_timestamp(at)}
        elif isinstance(at, Txid):
            named = {"at": "txid", "txid": at.value}
        wanted = self.wanted
        request = ListOffsets.model_validate(
            {"id": self.link.next_id(), "stream": wanted.stream, "incarnation": wanted.incarnation, **named}
        )
        response = (await self.link.ask(request)).response
        assert isinstance(response, ListOffsetsResponse), "C1: a response has its request's type"
        if self.leader_only and response.leads is False:
            raise NotLeader(f"node {self.link.node} does not lead {wanted.stream!r} any more")
        return response


async def _resolve(question: _Asked) -> ResolvedRange:
    wanted, now = question.wanted, datetime.now(UTC)
    wanted = replace(wanted, start=since(wanted.start, now), end=since(wanted.end, now))
    question = replace(question, wanted=wanted)
    # Only a leader that knows what earlier ones have acked says where the end is; the start any leader knows.
    needs_end = not wanted.follow or _is_at_end(wanted.start) or _is_at_end(wanted.end)
    bounds = await question.offsets("latest" if needs_end else "earliest")
    told = bounds.high_watermark if needs_end else bounds.log_start_offset
    if bounds.offset != told or bounds.log_start_offset > bounds.high_watermark:
        raise RemoteProtocolError(
            f"the {'latest' if needs_end else 'earliest'} offset is {bounds.offset}, "
            f"of [{bounds.log_start_offset}, {bounds.high_watermark})"
        )
    start = await _start(question, bounds)
    end = await _end(question, bounds)
    place = ReaderPlace(start, incarnation=Incarnation(bounds.incarnation))
    if end is not None and start >= end and named_offset(wanted.start) is not None:
        await _check_start(question, place)
    end_timestamp = to_timestamp(wanted.end) if wanted.follow and isinstance(wanted.end, datetime) else None
    return ResolvedRange(place, end, end_timestamp, Offset(bounds.high_watermark))


def _is_at_end(place: Start | End) -> bool:
    return place == "latest" or (isinstance(place, int) and place < 0)


def _before_end(count: int, bounds: ListOffsetsResponse) -> Offset:
    return before_end(count, Offset(bounds.log_start_offset), Offset(bounds.high_watermark))


async def _start(question: _Asked, bounds: ListOffsetsResponse) -> Offset:
    start = question.wanted.start
    if isinstance(start, datetime | Txid):
        return Offset((await question.offsets(start)).offset)
    if isinstance(start, int):
        return Offset(start) if start >= 0 else _before_end(start, bounds)
    return Offset(bounds.log_start_offset if start == "earliest" else bounds.high_watermark)


async def _end(question: _Asked, bounds: ListOffsetsResponse) -> Offset | None:
    end, follow = question.wanted.end, question.wanted.follow
    if isinstance(end, datetime):
        # A moment to come has no offset yet: a following reader watches the timestamps instead.
        return None if follow else Offset((await question.offsets(end)).offset)
    if isinstance(end, int) and end < 0:
        return _before_end(end, bounds)
    if isinstance(end, int):
        return Offset(end if follow else min(end, bounds.high_watermark))
    return None if end is None and follow else Offset(bounds.high_watermark)


async def _check_start(question: _Asked, place: ReaderPlace) -> None:
    """Let the node refuse a start out of range, although nothing will be read from there."""
    request = Fetch(
        id=question.link.next_id(),
        stream=question.wanted.stream,
        offset=place.offset,
        max_bytes=1,
        incarnation=place.incarnation,
        subject=question.wanted.wanted.subject,
    )
    await question.link.ask(request)
