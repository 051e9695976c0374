"""The operations of the request API on partitioned streams: the same to every partition.

A partitioned stream is its partitions, and each of them is changed by a command of its own. If that fails in
the middle, the error says so, and the same request does the rest.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from envelope.errors import InternalError, JetstreamError, UnknownStream
from envelope.types import StreamName
from jetstream.node.api.placement import Placing
from jetstream.node.api.stream_info import stream_summary
from jetstream.node.streams.directory import NodeStreams
from metadata.api.requests import (
    CreateStreamRequest,
    DeleteStreamRequest,
    ElectLeaderRequest,
    ReassignStreamRequest,
    Request,
    ResetStreamTimeRequest,
    RestoreStreamRequest,
    SetTxidRequest,
    StreamInfoRequest,
    StreamPublishersRequest,
    TruncateStreamRequest,
    UpdateStreamRequest,
)
from metadata.api.responses import (
    CreatePartitionedStreamResponse,
    DeletePartitionedStreamResponse,
    DeleteStreamResponse,
    PartitionedStreamInfo,
    StreamInfo,
)
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import Command, DeleteStream
from metadata.catalog.events import Event, StreamCreated, StreamDeleted
from metadata.catalog.tables import Stream
from metadata.partitioning import (
    OF_THE_WHOLE,
    is_partitioned,
    missing,
    partitions_to_add,
    refuse_beyond_limits,
    refuse_changes_beyond_limits,
    to_create,
    updated_partitions,
    wanted,
    whole_config,
)
from metadata.rebalancing import planned
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

_AT_ONCE: Final = 64
"""Partitions that are changed at the same time."""

_StreamRequest = (
    RestoreStreamRequest
    | UpdateStreamRequest
    | DeleteStreamRequest
    | StreamInfoRequest
    | StreamPublishersRequest
    | TruncateStreamRequest
    | SetTxidRequest
    | ResetStreamTimeRequest
    | ReassignStreamRequest
    | ElectLeaderRequest
)


@dataclass(frozen=True, slots=True)
class OneStream:
    """The operations on a single stream."""

    propose: Callable[[Command], Awaitable[Event]]
    """Have a command applied; raises the refusal."""
    update: Callable[[UpdateStreamRequest], Coroutine[Any, Any, StreamInfo]]
    served: Callable[[StreamName, float], Coroutine[Any, Any, StreamInfo]]
    """Returns when a stream takes messages, or at that time of the loop's clock."""


class PartitionedStreams:
    """Answers them; used on the loop's thread of the node that leads the metadata log."""

    def __init__(
        self, catalog: Catalog, streams: NodeStreams, placing: Placing, operations: OneStream
    ) -> None:
        self._catalog = catalog
        self._streams = streams
        self._placing = placing
        self._operations = operations

    def is_asked(self, request: Request) -> bool:
        """Return whether a request is one about a partitioned stream, to be answered by `answer`."""
        if isinstance(request, CreateStreamRequest):
            return request.is_partitioned
        return isinstance(request, _StreamRequest) and self._catalog.is_partitioned(request.name)

    async def answer(
        self, request: Request, answers_at: float
    ) -> PartitionedStreamInfo | DeletePartitionedStreamResponse:
        """Do what ``request`` asks; returns when it is durable.

        Args:
            request: one for which `is_asked` is true.
            answers_at: when it is answered at the latest, even if new partitions do not take messages yet; by
                the loop's clock.

        Raises:
            StreamIsPartitioned: it is to be asked of each partition.
            JetstreamError: the typed refusal; of some partitions it may have been done, as it then says.
        """
        match request:
            case CreateStreamRequest():
                return await self._create(request, answers_at)
            case UpdateStreamRequest():
                return await self._update(request, answers_at)
            case DeleteStreamRequest():
                return await self._delete(request.name)
            case StreamInfoRequest():
                return self._info(request.name)
            case _:
                assert isinstance(request, _StreamRequest), "`is_asked` says so"
                raise is_partitioned(request.name, self._catalog)

    async def _create(
        self, request: CreateStreamRequest, answers_at: float
    ) -> CreatePartitionedStreamResponse:
        configs = to_create(
            self._placing.config(request),
            self._catalog,
            any_replicas="replicas" not in request.model_fields_set,
        )
        is_new = await self._add(configs, answers_at)
        return CreatePartitionedStreamResponse(**dict(self._info(request.name)), created=is_new)

    async def _add(self, configs: Sequence[StreamConfig], answers_at: float) -> bool:
        """Create partitions; return, once they take messages, whether any is new."""
        commands = await self._placing.creations(configs)
        refuse_beyond_limits(commands, self._catalog)
        events = await _all(
            [(command.config.name, partial(self._operations.propose, command)) for command in commands],
            _AT_ONCE,
        )
        await asyncio.gather(
            *(self._operations.served(StreamName(config.name), answers_at) for config in configs)
        )
        if configs:
            _log.info("partitions created stream=%s partitions=%d", configs[0].partition_of, len(configs))
        return any(isinstance(event, StreamCreated) for event in events)

    async def _update(self, request: UpdateStreamRequest, answers_at: float) -> PartitionedStreamInfo:
        rows = self._catalog.partition_rows(request.name)
        partitions = updated_partitions(request, whole_config(rows))
        fields = {name: getattr(request, name) for name in request.model_fields_set - OF_THE_WHOLE}
        if fields:
            changes = [
                UpdateStreamRequest.model_validate({**fields, "name": row.config.name}) for row in rows
            ]
            refuse_changes_beyond_limits(rows, changes[0].patch, self._catalog)
            # What one of them refuses all would: so it is asked before anything is changed.
            await self._operations.update(changes[0])
            # Where replicas are placed, each must know of those before it.
            at_once = _AT_ONCE if {"replicas", "read_replicas"}.isdisjoint(fields) else 1
            others = [(change.name, partial(self._operations.update, change)) for change in changes[1:]]
            await _all(others, at_once)
        rows = self._catalog.partition_rows(request.name)
        grown = whole_config(rows).model_copy(
            update={"partitions": partitions, "replicas": len(planned(rows[0]))}
        )
        await self._add(partitions_to_add(grown, self._catalog), answers_at)
        return self._info(request.name)

    async def _delete(self, name: str) -> DeletePartitionedStreamResponse:
        rows = self._catalog.partition_rows(name)
        # Without its first partition none takes messages: none goes to one that is the next to be deleted.
        first = await self._deleted(rows[0])
        others = await _all([(row.name, partial(self._deleted, row)) for row in rows[1:]], _AT_ONCE)
        deleted = [event for event in (first, *others) if event is not None]
        for event in deleted:
            await self._streams.removed(event.removal.incarnation)
        _log.info("partitioned stream deleted stream=%s partitions=%d", name, len(deleted))
        return DeletePartitionedStreamResponse(
            name=name,
            partitions=[
                DeleteStreamResponse(name=event.removal.name, incarnation=event.removal.incarnation)
                for event in deleted
            ],
        )

    async def _deleted(self, row: Stream) -> StreamDeleted | None:
        """Delete one partition; None if somebody else has."""
        try:
            event = await self._operations.propose(DeleteStream(row.name, row.incarnation))
        except UnknownStream:
            return None
        if not isinstance(event, StreamDeleted):
            raise InternalError(f"deletion answered by {type(event).__name__}")
        return event

    def _info(self, name: str) -> PartitionedStreamInfo:
        rows = self._catalog.partition_rows(name)
        if not rows:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return PartitionedStreamInfo(
            config=whole_config(rows),
            effective_partitions=self._catalog.partitions_of(name),
            missing=missing(rows, wanted(rows)),
            partitions=[stream_summary(row, self._streams) for row in rows],
        )


async def _all(changes: Sequence[tuple[str, Callable[[], Awaitable[_T]]]], at_once: int) -> list[_T]:
    """Do what is done to each partition, so many at once; all are tried.

    Raises:
        JetstreamError: the first refusal, and that the request is to be repeated.
    """
    done: list[_T] = []
    refused: list[tuple[str, JetstreamError]] = []
    for start in range(0, len(changes), at_once):
        some = changes[start : start + at_once]
        results = await asyncio.gather(*(change() for _, change in some), return_exceptions=True)
        for (name, _), result in zip(some, results, strict=True):
            if isinstance(result, JetstreamError):
                refused.append((name, result))
            elif isinstance(result, BaseException):
                raise result
            else:
                done.append(result)
    if refused:
        name, error = refused[0]
        raise type(error)(
            f"{error.description}; so it is with {name} and {len(refused) - 1} more partitions, and not with "
            f"{len(done)}: the same request does the rest",
            **error.detail,
        )
    return done
