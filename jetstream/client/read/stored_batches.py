"""Reading the committed batches of a stream as they are stored, undecoded: what a backup copies.

Theory of operation: as a `BatchReader`, over any number of reconnects, but nothing is cut to a range: batches
come whole, and every one is proven by its CRC. So the first one may begin before the offset that was asked
for, where the node has put several into one since.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Final

from envelope.errors import CorruptDataError, DeadlinePassed, JetstreamError, NotLeader, RemoteProtocolError
from envelope.limits import MIB
from envelope.types import LeaderEpoch, Offset
from jetstream.client.nodes.local_ranges import RangeAway
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.replica_choice import ReadPreference
from jetstream.client.nodes.stream_route import StreamRoute
from jetstream.client.read.fetch_pipeline import (
    FetchedRange,
    FetchPipeline,
    FetchSettings,
    ReadBounds,
    ReaderPlace,
    Wanted,
)
from jetstream.log.format.batch import SealedBatch, verified_batches
from jetstream.protocol.requests import Fetch

_SETTINGS: Final = FetchSettings(max_bytes=8 * MIB, prefetch_bytes=32 * MIB)
_BACKOFF_S: Final = 0.25
_DAMAGED_MAX: Final = 3
"""Damaged answers at one place before it is said, as of a `BatchReader`."""


@dataclass(frozen=True, slots=True)
class StoredPart:
    """Some batches, in order, that were proven by their CRCs; ``body`` is all of them."""

    body: memoryview
    batches: list[SealedBatch]


async def read_stored(
    links: NodeLinks, stream: str, place: ReaderPlace, end: Offset, retry_s: float
) -> AsyncGenerator[StoredPart, None]:
    """Yield the batches from the one that holds the place's offset up to one that reaches ``end``.

    Args:
        links: to the nodes.
        stream: an ordinary one, or a partition.
        place: where to begin; its epoch is that of the batch before, None if nothing is known of it.
        end: a committed offset; where the place is there, only the history before it is checked.
        retry_s: how long retriable errors are met with another attempt; progress begins it anew.

    Raises:
        OffsetOutOfRange: what comes next is not there any more.
        DivergedHistory: the records before the place are not those of the stream any more.
        StreamRecreated: the stream is another one than the place's.
        UnknownStream: there is none.
        CorruptDataError: it is damaged at every replica.
        JetstreamError: anything else; those that are ``retriable`` only after ``retry_s``.
    """
    attempts = _Attempts(StreamRoute(links, stream, ReadPreference()), retry_s)
    while True:
        pipeline: FetchPipeline | None = None
        try:
            if place.offset >= end:
                await _check_history(attempts.route, place)
                return
            pipeline = await attempts.pipeline(place, end)
            while place.offset < end and (fetched := await pipeline.take()) is not None:
                part = await attempts.proven(fetched, place)
                answer = fetched.response
                offset, epoch = Offset(answer.next_offset), LeaderEpoch(answer.epoch)
                place = replace(place, offset=offset, last_epoch=epoch)
                yield part
            if place.offset >= end:
                return
            attempts.caught_up()
        except RangeAway:
            attempts.is_away = True
        except JetstreamError as error:
            await attempts.failed(error)
        finally:
            if pipeline is not None:
                pipeline.stop()


class _Attempts:
    """The way to a stream's replicas, and how often it has failed in a row.

    Attributes:
        route: to the replicas.
        is_away: what comes next could not be read where it lies, and is to come over the socket.
    """

    def __init__(self, route: StreamRoute, retry_s: float) -> None:
        self.route = route
        self.is_away = False
        self._retry_s = retry_s
        self._failing_since: float | None = None
        self._damaged = 0

    async def pipeline(self, place: ReaderPlace, end: Offset) -> FetchPipeline:
        """Begin to fetch ``[place, end)``."""
        arrival = await self.route.to_records(place.incarnation, behind=True)
        is_away, self.is_away = self.is_away, False
        return FetchPipeline(
            link=arrival.link,
            stream=self.route.stream,
            place=place,
            bounds=ReadBounds(end, end, arrival.step.leaves),
            settings=replace(_SETTINGS, short_circuit=not is_away),
            selection=Wanted(),
        )

    async def proven(self, fetched: FetchedRange, place: ReaderPlace) -> StoredPart:
        """Return the batches of an answer, checked on a thread."""
        try:
            part = await asyncio.to_thread(_proven, fetched, place)
        except (CorruptDataError, RemoteProtocolError) as error:
            if fetched.response.file is not None:  # it may change behind its name: the node has to say
                raise RangeAway(error.description) from error
            raise
        self._failing_since, self._damaged = None, 0
        self.route.has_progressed()
        return part

    def caught_up(self) -> None:
        """Go to the leader for what the replica has not heard of.

        Raises:
            NotLeader: there is none.
        """
        if not self.route.has_caught_up():
            raise NotLeader(f"there is no leader of {self.route.stream!r} to go on at")

    async def failed(self, error: JetstreamError) -> None:
        """Wait before another attempt, or raise the error if that is no use."""
        is_damaged = isinstance(error, CorruptDataError | RemoteProtocolError)
        self._damaged += is_damaged
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        may_succeed = self.route.failed(error) or (is_damaged and self._damaged < _DAMAGED_MAX)
        if not may_succeed or now - self._failing_since >= self._retry_s:
            raise error
        await asyncio.sleep(random.uniform(_BACKOFF_S / 2, _BACKOFF_S))  # noqa: S311 - no secret


async def _check_history(route: StreamRoute, place: ReaderPlace) -> None:
    """Let the leader say whether the records before a place are still those of the stream; reads nothing."""
    arrival = await route.to_offsets(place.incarnation)
    request = Fetch(
        id=arrival.link.next_id(),
        stream=route.stream,
        offset=place.offset,
        max_bytes=1,
        last_epoch=place.last_epoch,
        incarnation=place.incarnation,
    )
    try:
        async with asyncio.timeout(_SETTINGS.timeout_s):
            await arrival.link.ask(request)
    except TimeoutError:
        arrival.link.close()
        raise DeadlinePassed(f"no answer about {route.stream!r} in {_SETTINGS.timeout_s:g} s") from None


def _proven(fetched: FetchedRange, place: ReaderPlace) -> StoredPart:
    """Return the batches of an answer, which are to hold the place's offset, after checking each."""
    response = fetched.response
    batches = verified_batches(fetched.body)
    base = next_base = Offset(response.start_offset)
    for header, _ in batches:
        if header.base != next_base or header.leader_epoch != response.epoch:
            raise RemoteProtocolError(f"wanted offset {next_base}, got [{header.base}, {header.next})")
        next_base = header.next
    if not base <= place.offset < next_base or next_base != response.next_offset:
        raise RemoteProtocolError(f"wanted offset {place.offset}, got [{base}, {next_base})")
    return StoredPart(fetched.body, batches)
