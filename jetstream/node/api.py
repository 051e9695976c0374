"""The request API: one NATS subscription, answered request by request in the order of arrival.

A request is parsed and answered by the models of `metadata.api`; what it changes goes through the catalogue
first and to the node's streams second, so that a crash in between is finished at the next start.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from nats.aio.msg import Msg

from envelope.errors import InternalError, JetstreamError, Overloaded, StreamOffline, UnknownStream
from envelope.types import Incarnation, NodeId, Offset, StreamName
from jetstream.node.clock import Clock
from jetstream.node.disk_thread import DiskThread
from jetstream.node.gaps import Gap
from jetstream.node.nats_link import NatsLink
from jetstream.node.stream_info import stream_info, stream_summary
from jetstream.node.streams import Streams
from jetstream.protocol.requests import PROTOCOL_VERSION
from metadata.api.requests import (
    ClusterInfoRequest,
    CreateStreamRequest,
    DeleteStreamRequest,
    ListStreamsRequest,
    LookupStreamsRequest,
    Request,
    StreamInfoRequest,
    TruncateStreamRequest,
    UpdateStreamRequest,
)
from metadata.api.responses import (
    ClusterInfo,
    CreateStreamResponse,
    DeleteStreamResponse,
    ListStreamsResponse,
    LookupStreamsResponse,
    NodeInfo,
    Response,
    StreamInfo,
    TruncateStreamResponse,
    UpdateStreamResponse,
    list_page,
)
from metadata.api.wire import encode_error, encode_response, parse_request
from metadata.catalog.commands import Command, ConfirmRemoval, CreateStream, DeleteStream, UpdateStream
from metadata.catalog.events import Event, StreamCreated, StreamDeleted, StreamFound, StreamUpdated
from metadata.catalog.tables import Stream
from metadata.node.local import LocalMetadata

_log = logging.getLogger(__name__)

_INCARNATION_BYTES: Final = 8
_REQUESTS_WAITING_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class ApiServices:
    """What the API needs of its node."""

    clock: Clock
    disk: DiskThread
    link: NatsLink
    interruption: Callable[[], Gap | None]
    """The interruption of the ingest connection that lasts now."""
    stream_gone: Callable[[StreamName], None]
    """Tell readers that a stream was deleted."""


class RequestApi:
    """Answers ``<prefix>.>``; used on the loop's thread, one request at a time."""

    def __init__(
        self,
        prefix: str,
        cluster: str,
        node_id: NodeId,
        metadata: LocalMetadata,
        streams: Streams,
        services: ApiServices,
    ) -> None:
        self._prefix = prefix
        self._cluster = cluster
        self._node_id = node_id
        self._metadata = metadata
        self._catalog = metadata.catalog
        self._streams = streams
        self._services = services
        self._waiting: asyncio.Queue[Msg] = asyncio.Queue(_REQUESTS_WAITING_MAX)

    async def attach(self) -> None:
        """Subscribe; the server has the subscription on return."""
        await self._services.link.serve(f"{self._prefix}.>", self._take)

    async def _take(self, message: Msg) -> None:
        try:
            self._waiting.put_nowait(message)
        except asyncio.QueueFull:
            error = Overloaded(f"{_REQUESTS_WAITING_MAX} requests are waiting")
            await self._services.link.publish(message.reply, encode_error(error))

    async def run(self) -> None:
        """Answer requests one by one until cancelled."""
        while True:
            await self._respond(await self._waiting.get())

    async def _respond(self, message: Msg) -> None:
        suffix = message.subject.removeprefix(f"{self._prefix}.")
        try:
            answer = encode_response(await self.answer(parse_request(suffix, message.data)))
        except JetstreamError as error:
            _log.info("request refused request=%s error=%s", suffix, error)
            answer = encode_error(error)
        if message.reply:
            await self._services.link.publish(message.reply, answer)

    async def answer(self, request: Request) -> Response:
        """Do what ``request`` asks; returns when it is durable.

        Raises:
            JetstreamError: the typed refusal, to be sent instead.
        """
        match request:
            case CreateStreamRequest():
                return await self._create(request)
            case UpdateStreamRequest():
                return await self._update(request)
            case DeleteStreamRequest():
                return await self._delete(request)
            case TruncateStreamRequest():
                return await self._truncate(request)
            case StreamInfoRequest():
                return self._info(self._known(request.name))
            case _:
                return self._survey(request)

    def _survey(self, request: ListStreamsRequest | LookupStreamsRequest | ClusterInfoRequest) -> Response:
        match request:
            case ListStreamsRequest():
                return self._list(request)
            case LookupStreamsRequest(subject=subject):
                found = self._catalog.streams_of(subject)
                return LookupStreamsResponse(
                    subject=subject, streams=[stream_summary(stream, self._streams) for stream in found]
                )
            case ClusterInfoRequest():
                return self._cluster_info()
            case _:
                assert_never(request)

    # --- changes ---------------------------------------------------------------------------------

    async def _propose(self, command: Command) -> Event:
        results = await self._services.disk.call(lambda: self._metadata.propose([command]))
        return results[0].answer()

    async def _create(self, request: CreateStreamRequest) -> CreateStreamResponse:
        event = await self._propose(
            CreateStream(
                config=request.config,
                incarnation=Incarnation(secrets.token_hex(_INCARNATION_BYTES)),
                created=self._services.clock.wall(),
                replicas=(self._node_id,),
                leader=self._node_id,
                api_prefix=self._prefix,
            )
        )
        match event:
            case StreamCreated(stream):
                await self._streams.start(stream)
                _log.info("stream created stream=%s subject=%s", stream.name, stream.config.subject)
            case StreamFound(stream):
                pass
            case _:
                raise InternalError(f"creation answered by {type(event).__name__}")
        info = self._info(stream)
        return CreateStreamResponse(**dict(info), created=isinstance(event, StreamCreated))

    async def _update(self, request: UpdateStreamRequest) -> UpdateStreamResponse:
        event = await self._propose(
            UpdateStream(stream=StreamName(request.name), patch=request.patch, api_prefix=self._prefix)
        )
        if not isinstance(event, StreamUpdated):
            raise InternalError(f"update answered by {type(event).__name__}")
        if event.stream != event.before:
            await self._streams.reconfigure(event.stream)
            _log.info("stream updated stream=%s", event.stream.name)
        return UpdateStreamResponse(**dict(self._info(event.stream)))

    async def _delete(self, request: DeleteStreamRequest) -> DeleteStreamResponse:
        event = await self._propose(DeleteStream(stream=StreamName(request.name)))
        if not isinstance(event, StreamDeleted):
            raise InternalError(f"deletion answered by {type(event).__name__}")
        name, incarnation = event.removal.name, event.removal.incarnation
        await self._streams.end(name)
        self._services.stream_gone(name)
        await self._streams.remove_files(name, incarnation)
        await self._propose(ConfirmRemoval(self._node_id, incarnation))
        _log.info("stream deleted stream=%s", name)
        return DeleteStreamResponse(name=name, incarnation=incarnation)

    async def _truncate(self, request: TruncateStreamRequest) -> TruncateStreamResponse:
        stream = self._known(request.name)
        task = self._streams.stream(stream.name)
        if task is None:
            raise StreamOffline(f"stream {stream.name} is not led by this node")
        before = Offset(request.before)
        await self._services.disk.call(lambda: task.upkeep.truncate_before(before))
        return TruncateStreamResponse(
            name=stream.name, log_start_offset=task.log.log_start_offset, high_watermark=task.high_watermark
        )

    # --- questions -------------------------------------------------------------------------------

    def _known(self, name: str) -> Stream:
        stream = self._catalog.stream(StreamName(name))
        if stream is None:
            raise UnknownStream(f"no stream {name!r}")
        return stream

    def _info(self, stream: Stream) -> StreamInfo:
        return stream_info(stream, self._streams, self._services.interruption(), self._services.clock.wall())

    def _list(self, request: ListStreamsRequest) -> ListStreamsResponse:
        prefix = request.prefix or ""
        matching = [stream for stream in self._catalog.streams() if stream.name.startswith(prefix)]
        summaries = (stream_summary(stream, self._streams) for stream in matching[request.offset :])
        return list_page(request, len(matching), summaries)

    def _cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            name=self._cluster,
            nodes=[
                NodeInfo(
                    id=node.node_id,
                    node_epoch=node.node_epoch,
                    host=node.host,
                    port=node.port,
                    http_port=node.http_port,
                    version=node.version,
                )
                for node in self._catalog.nodes()
            ],
            metadata_leader=self._node_id,
            streams=self._catalog.count_streams(),
            protocol_versions=[PROTOCOL_VERSION],
        )
