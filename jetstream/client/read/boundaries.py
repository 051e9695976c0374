"""The offset at which so many stored bytes of a stream end, asked of whichever replica knows.

Any replica in sync can report committed offsets. Only the leader can report that nothing is there yet: the
others get a new high watermark a moment later.
"""

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Final

from envelope.errors import (
    DeadlinePassed,
    JetstreamError,
    NotLeader,
    RemoteProtocolError,
    RequestError,
    Unsupported,
)
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import ReadPreference
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.client.nodes.stream_route import StreamRoute
from jetstream.protocol.request_base import INTEGER_MAX
from jetstream.protocol.requests import ListOffsets
from jetstream.protocol.responses import ListOffsetsResponse

RETRY_S_DEFAULT: Final = 60.0
_ANSWER_SECONDS: Final = 10.0
"""How long one node is waited for; it answers within 5 s even if it waits for the object store."""
_BACKOFF_S_MIN: Final = 0.02
_BACKOFF_S_MAX: Final = 1.0


@dataclass(frozen=True, slots=True)
class ByteRange:
    """A request for the batches from ``offset`` on that have at most ``max_bytes``."""

    stream: str
    offset: int
    max_bytes: int
    incarnation: str | None = None
    subject: str | None = None
    """A ticket for what is on it will do."""

    def validated(self) -> "ByteRange":
        """Return self; raise RequestError if a number cannot be."""
        if isinstance(self.offset, bool) or not 0 <= self.offset <= INTEGER_MAX:
            raise RequestError(f"{self.offset!r} is not an offset")
        if isinstance(self.max_bytes, bool) or not 1 <= self.max_bytes <= INTEGER_MAX:
            raise RequestError(f"max_bytes: {self.max_bytes!r} is not of 1 to 2^63-1")
        return self


async def find_boundary(links: NodeLinks, byte_range: ByteRange, retry_s: float) -> tuple[int, int]:
    """Return the offset after those batches, and their bytes; see `JetstreamClient.boundary`."""
    route = StreamRoute(links, byte_range.stream, ReadPreference(), byte_range.subject)
    gives_up_at = time.monotonic() + retry_s
    longest = _BACKOFF_S_MIN
    while True:
        try:
            arrival = await route.to_records(byte_range.incarnation, behind=True)
            answer = await _asked(arrival.link, byte_range)
            if answer.bytes or answer.leads:
                return answer.offset, answer.bytes or 0
            if not route.has_caught_up():
                raise NotLeader(f"there is no leader of {byte_range.stream!r} to ask")
        except JetstreamError as error:
            if not route.failed(error) or time.monotonic() >= gives_up_at:
                raise
            await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - spreads requests, no secret
            longest = min(2 * longest, _BACKOFF_S_MAX)


async def _asked(link: SocketLink, byte_range: ByteRange) -> ListOffsetsResponse:
    request = ListOffsets(
        id=link.next_id(),
        stream=byte_range.stream,
        at="bytes",
        offset=byte_range.offset,
        bytes=byte_range.max_bytes,
        incarnation=byte_range.incarnation,
    )
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = (await link.ask(request)).response
    except TimeoutError:
        link.close()
        raise DeadlinePassed(f"no offsets of {byte_range.stream!r} in {_ANSWER_SECONDS:g} s") from None
    except RequestError as error:
        if type(error) in {RequestError, Unsupported}:  # what we send is well-formed
            raise Unsupported(f"node {link.node} is too old to tell where bytes end: {error}") from None
        raise
    assert isinstance(answer, ListOffsetsResponse), "C1: a response has its request's type"
    return _checked(answer, byte_range)


def _checked(answer: ListOffsetsResponse, byte_range: ByteRange) -> ListOffsetsResponse:
    """Return an answer that can be; raise RemoteProtocolError otherwise."""
    is_empty = answer.offset == byte_range.offset
    if answer.bytes is None or (answer.bytes == 0) != is_empty:
        raise RemoteProtocolError(
            f"from offset {byte_range.offset} to {answer.offset} in {answer.bytes} bytes"
        )
    if not is_empty and not byte_range.offset < answer.offset <= answer.high_watermark:
        raise RemoteProtocolError(
            f"from offset {byte_range.offset} to {answer.offset}, at high watermark {answer.high_watermark}"
        )
    if byte_range.incarnation not in {None, answer.incarnation}:
        raise RemoteProtocolError(f"wanted incarnation {byte_range.incarnation}, got {answer.incarnation}")
    return answer
