"""The committed ranges of streams now, asked of their leaders."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from envelope.errors import JetstreamError, UnknownStream
from jetstream.client.admin.group_lag import CommittedRange
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import ReadPreference
from jetstream.client.nodes.stream_route import StreamRoute
from jetstream.client.read.places import Start
from jetstream.client.read.read_range import ReadRange, resolve

PATIENCE_S_DEFAULT: Final = 5.0
_ANSWER_SECONDS: Final = 10.0
"""How long one node is waited for: where one stands still, another one leads before long."""
_LOOK_SECONDS: Final = 0.1
_ASKED_AT_ONCE: Final = 64


async def range_of(
    links: NodeLinks, stream: str, since: Start, patience_s: float, subject: str | None = None
) -> CommittedRange:
    """Return the committed range of a stream, from ``since`` on; waits for a leader.

    ``subject``: a ticket for what is on it will do.

    Raises:
        UnknownStream: there is none.
        JetstreamError: it had no leader for ``patience_s`` seconds, or no node could be asked.
    """
    route = StreamRoute(links, stream, ReadPreference("leader"), subject)
    gives_up_at = time.monotonic() + patience_s
    while True:
        try:
            arrival = await route.to_offsets(None)
            resolved = await resolve(
                ReadRange(stream, start=since, end="latest").validated(),
                arrival.link,
                min(patience_s, _ANSWER_SECONDS),
                leader_only=arrival.step.leaves,
            )
        except JetstreamError as error:
            if not route.failed(error) or time.monotonic() > gives_up_at:
                raise
        else:
            place = resolved.place
            assert place.incarnation is not None, "a node tells which life of the stream it has"
            return CommittedRange(place.offset, resolved.high_watermark, place.incarnation)
        await asyncio.sleep(_LOOK_SECONDS)


async def ranges_of(
    links: NodeLinks, streams: Sequence[str], since: Start, patience_s: float, subject: str | None = None
) -> dict[str, CommittedRange]:
    """Return the committed range of each stream that exists; raises what `range_of` raises."""

    async def found(stream: str) -> CommittedRange | None:
        try:
            return await range_of(links, stream, since, patience_s, subject)
        except UnknownStream:
            return None

    ranges: dict[str, CommittedRange] = {}
    for first in range(0, len(streams), _ASKED_AT_ONCE):
        some = streams[first : first + _ASKED_AT_ONCE]
        answers = await asyncio.gather(*map(found, some))
        ranges |= {stream: answer for stream, answer in zip(some, answers, strict=True) if answer is not None}
    return ranges
