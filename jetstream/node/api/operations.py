"""The operations of the request API, on the node that answers a request."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, assert_never

from envelope.errors import InternalError, JetstreamError, StreamOffline, UnknownStream
from envelope.internal_streams import CURSORS, is_internal
from envelope.partition_errors import PartitionsMissing
from envelope.types import NodeEpoch, NodeId, Offset, StreamName
from jetstream.node.api.cluster_operations import ClusterOperations
from jetstream.node.api.group_operations import Coordination, GroupOperations, NodeWays
from jetstream.node.api.internal_streams import make_internal_stream
from jetstream.node.api.moves import MovingRequest, OrderedElection, Reassigning, elect
from jetstream.node.api.namespaces import answer_about_namespaces
from jetstream.node.api.partitioned_streams import OneStream, PartitionedStreams
from jetstream.node.api.placement import Placing
from jetstream.node.api.restore import check_store, found_remains, going_on, restored_config
from jetstream.node.api.stream_info import confirm_reign, stream_info, stream_publishers, stream_summary
from jetstream.node.api.tickets import TicketOffice
from jetstream.node.groups.cursor_store import CursorStore
from jetstream.node.nats.audit_trail import AuditTrail
from jetstream.node.nats.gaps import Gap
from jetstream.node.nats.link import NatsLink
from jetstream.node.nats.routes import REFUSALS
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.clock import Clock
from jetstream.node.streams.directory import NodeStreams
from jetstream.node.tiers.segment_cache import Tier
from jetstream.node.tiers.upload_round import truncate_before
from metadata.api.publisher_responses import ResetStreamTimeResponse, SetTxidResponse
from metadata.api.requests import (
    ClusterInfoRequest,
    CreateStreamRequest,
    CursorQuestion,
    DeleteStreamRequest,
    ElectLeaderRequest,
    GroupRequest,
    ListStreamsRequest,
    LookupStreamsRequest,
    NamespaceRequest,
    Request,
    ResetStreamTimeRequest,
    RestoreStreamRequest,
    SetTxidRequest,
    StreamChange,
    StreamInfoRequest,
    StreamPublishersRequest,
    TicketRequest,
    TruncateStreamRequest,
    UpdateClusterRequest,
    UpdateStreamRequest,
)
from metadata.api.responses import (
    ClusterInfo,
    CreateStreamResponse,
    DeleteStreamResponse,
    ListStreamsResponse,
    LookupStreamsResponse,
    Response,
    StreamInfo,
    StreamState,
    TruncateStreamResponse,
    UpdateStreamResponse,
    list_page,
    utc,
)
from metadata.api.routing import node_subject
from metadata.api.wire import decode_response, encode_request
from metadata.catalog.catalog import Catalog, streams_of
from metadata.catalog.commands import Command, DeleteStream, SetTxid
from metadata.catalog.events import Event, StreamCreated, StreamDeleted, StreamFound, StreamUpdated
from metadata.catalog.tables import Stream
from metadata.node.catalogue.group import MetadataQuorum
from metadata.partitioning import is_partition, refuse_lone_change

_log = logging.getLogger(__name__)

_Survey = (
    StreamInfoRequest
    | ListStreamsRequest
    | LookupStreamsRequest
    | ClusterInfoRequest
    | ResetStreamTimeRequest
    | StreamPublishersRequest
)
READY_SECONDS: Final = 4.5
"""How long after a creation was asked for it is answered at the latest: clients wait 5 s by default."""
QUESTION_SECONDS: Final = 1.0
"""What changes nothing is asked again after that: it may have died with the question."""
LOOK_SECONDS: Final = 0.05
_REFUSALS: Final = {refusal.err_code: refusal for refusal in REFUSALS}
_HEARD_NS: Final = 1_000_000_000
"""How long an update waits until the stream's leader has applied it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServices:
    """The parts of a node that the API uses."""

    clock: Clock
    link: NatsLink
    interruption: Callable[[], Gap | None]
    """The interruption of the ingest connection that lasts now."""
    alive: Callable[[], frozenset[NodeId] | None]
    """The nodes that can hold a new stream; None if this node does not know."""
    node_epoch: Callable[[], NodeEpoch]
    """Of this start; 0 before it has registered."""
    ordered_election: OrderedElection
    tier: Tier
    cursors: CursorStore
    groups: Coordination
    ticket_lifetime: timedelta
    ticket_grace: timedelta
    audit: AuditTrail


class ApiOperations:
    """Answers requests; used on the loop's thread."""

    def __init__(
        self,
        prefix: str,
        cluster: str,
        node_id: NodeId,
        metadata: MetadataQuorum,
        streams: NodeStreams,
        services: ApiServices,
    ) -> None:
        self._prefix = prefix
        self._node_id = node_id
        self._metadata = metadata
        self._catalog = metadata.catalog
        self._streams = streams
        self._services = services
        self._placing = Placing(prefix, metadata, services.clock, services.alive)
        ways = NodeWays(node_id, prefix, services.link, services.clock)
        self._cluster = ClusterOperations(cluster, ways, metadata, services.alive, services.node_epoch)
        self._groups = GroupOperations(ways, metadata, services.groups, self._made_internal)
        self._tickets = TicketOffice(
            metadata, services.clock, services.ticket_lifetime, services.ticket_grace
        )
        self._reassigning = Reassigning(metadata, services.alive)
        operations = OneStream(self._propose, self._update, self._served)
        self._partitioned = PartitionedStreams(metadata.catalog, streams, self._placing, operations)

    async def answer(self, request: Request, *, is_live: bool = True) -> Response:
        """Do what ``request`` asks; returns when it is durable.

        ``is_live``: info of a stream that is led here waits until that is confirmed; else it does not.

        Raises:
            JetstreamError: the typed refusal, to be sent instead.
        """
        if is_live and isinstance(request, StreamInfoRequest):
            await confirm_reign(self._streams, request.name)
        if self._partitioned.is_asked(request):
            if isinstance(request, CreateStreamRequest):
                check_store(self._services.tier, needed=request.tier)
            return await self._partitioned.answer(request, _answers_at())
        return await self._answer_lone(request)

    async def _answer_lone(self, request: Request) -> Response:
        """Do what a request asks that is about no partitioned stream."""
        if isinstance(request, StreamChange):
            return await self._change(request)
        if isinstance(request, CursorQuestion):
            await self._made_internal(CURSORS)
            return await self._services.cursors.answer(request)
        if isinstance(request, GroupRequest):
            return await self._groups.answer(request)
        if isinstance(request, MovingRequest):
            return await self._reassigning.answer(request)
        return await self._answer_rarer(request)

    async def _answer_rarer(
        self, request: ElectLeaderRequest | NamespaceRequest | TicketRequest | UpdateClusterRequest | _Survey
    ) -> Response:
        if isinstance(request, ElectLeaderRequest):
            return await elect(request, self._services.ordered_election, self._propose)
        if isinstance(request, NamespaceRequest):
            return await answer_about_namespaces(request, self._catalog, self._propose)
        if isinstance(request, TicketRequest):
            return await self._tickets.answer(request)
        if isinstance(request, UpdateClusterRequest):
            return await self._cluster.update(request)
        return await self._survey(request)

    async def _change(self, request: StreamChange) -> Response:
        match request:
            case CreateStreamRequest() | RestoreStreamRequest():
                return await self._create(request)
            case UpdateStreamRequest():
                refuse_lone_change(self._known(request.name), request.patch)
                return await self._update(request)
            case DeleteStreamRequest():
                return await self._delete(request)
            case TruncateStreamRequest():
                return await self._truncate(request)
            case SetTxidRequest():
                return await self._set_txid(request)
            case _:
                assert_never(request)

    async def _survey(self, request: _Survey) -> Response:
        match request:
            case ResetStreamTimeRequest(name=name):
                return _time_reset(*await self._led(name))
            case StreamPublishersRequest(name=name):
                replica, leading = await self._led(name)
                return stream_publishers(request, self._known(name), replica, leading.high_watermark)
            case StreamInfoRequest(name=name):
                return self._info(self._known(name))
            case ListStreamsRequest():
                return _listed(request, self._catalog, self._streams)
            case LookupStreamsRequest(subject=subject):
                found = streams_of(self._catalog, subject)
                return LookupStreamsResponse(
                    subject=subject, streams=[stream_summary(stream, self._streams) for stream in found]
                )
            case ClusterInfoRequest():
                return self.cluster_info()
            case _:
                assert_never(request)

    async def _made_internal(self, name: StreamName) -> None:
        """Make an internal stream if there is none; returns once this node serves or knows it.

        Raises:
            NotLeader: there is none, and another node leads the metadata log, which makes it.
            NotEnoughReplicas: too few nodes are alive to hold it.
        """
        if self._catalog.stream(name) is None:
            await make_internal_stream(name, self._prefix, self._metadata, self._placing)
            await self._streams.settled()

    # --- changes ---------------------------------------------------------------------------------

    async def _propose(self, command: Command) -> Event:
        return (await self._metadata.propose(command)).answer()

    async def _create(self, request: CreateStreamRequest | RestoreStreamRequest) -> CreateStreamResponse:
        answers_at = _answers_at()
        tier = self._services.tier
        if isinstance(request, RestoreStreamRequest):
            remains = await found_remains(request, self._catalog, tier)
            config = restored_config(request, remains, len(self._catalog.nodes()))
            command = going_on(await self._placing.creation(config), remains)
        else:
            check_store(tier, needed=request.tier)
            command = await self._placing.creation(self._placing.config(request))
        event = await self._propose(command)
        match event:
            case StreamCreated(stream):
                _log.info("stream created stream=%s subject=%s", stream.name, stream.config.subject)
            case StreamFound(stream):
                pass
            case _:
                raise InternalError(f"creation answered by {type(event).__name__}")
        info = await self._served(stream.name, answers_at)
        return CreateStreamResponse(**dict(info), created=isinstance(event, StreamCreated))

    async def _served(self, name: StreamName, answers_at: float) -> StreamInfo:
        """Return a stream's info once its leader serves it with all replicas in sync, or as it is then.

        A partition that waits for others is told as it is, unless all are there and it has yet to hear of it.

        Args:
            name: of the stream.
            answers_at: when it is told as it is, on the loop's clock.

        Raises:
            Unauthorized, SubscriptionRefused: NATS does not let its leader subscribe.
        """
        try:
            async with asyncio.timeout_at(answers_at):
                while True:
                    info = await self._ask_leader(name)
                    if info is not None and info.state == StreamState.ONLINE and info.is_replicated:
                        return info
                    if info is not None and _waits_for_others(info, self._catalog):
                        return info
                    if info is not None and info.reason_code in _REFUSALS:
                        raise _REFUSALS[info.reason_code](info.reason or "")
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            return self._info(self._known(name))

    async def _ask_leader(self, name: StreamName) -> StreamInfo | None:
        """Return the info of the stream from its leader; None if there is no answer."""
        stream = self._known(name)
        if stream.leader in (None, self._node_id):
            await self._streams.settled()
            return self._info(self._known(name))
        subject = node_subject(self._prefix, stream.leader, "stream.info")
        try:
            answer = await self._services.link.request(
                subject, encode_request(StreamInfoRequest(name=name)), QUESTION_SECONDS
            )
            return decode_response(StreamInfo, answer)
        except JetstreamError as error:
            _log.debug("no info yet stream=%s error=%s", name, error)
            return None

    async def _update(self, request: UpdateStreamRequest) -> UpdateStreamResponse:
        check_store(self._services.tier, needed=request.tier)
        event = await self._reassigning.accepted(await self._placing.update(request))
        if not isinstance(event, StreamUpdated):
            raise InternalError(f"update answered by {type(event).__name__}")
        if event.stream != event.before:
            await self._streams.settled()
            _log.info("stream updated stream=%s", event.stream.name)
        return UpdateStreamResponse(**dict(await self._known_to_leader(event.stream)))

    async def _known_to_leader(self, changed: Stream) -> StreamInfo:
        """Return what a stream's leader says of it once it knows of a change, so that the change is in force.

        A leader that does not answer, or has not heard of it for so long, is not waited for.
        """
        asked_at = self._services.clock.monotonic()
        while (info := await self._ask_leader(changed.name)) is not None:
            if _has_applied(info, changed):
                return info
            if self._services.clock.monotonic() > asked_at + _HEARD_NS:
                break
            await asyncio.sleep(LOOK_SECONDS)
        return self._info(changed)

    async def _delete(self, request: DeleteStreamRequest) -> DeleteStreamResponse:
        row = self._known(request.name)
        if row.config.partition_of is not None:
            raise is_partition(row, "partitions are deleted together")
        event = await self._propose(DeleteStream(stream=row.name))
        if not isinstance(event, StreamDeleted):
            raise InternalError(f"deletion answered by {type(event).__name__}")
        name, incarnation = event.removal.name, event.removal.incarnation
        await self._streams.removed(incarnation)
        _log.info("stream deleted stream=%s", name)
        return DeleteStreamResponse(name=name, incarnation=incarnation)

    async def _truncate(self, request: TruncateStreamRequest) -> TruncateStreamResponse:
        replica, _ = await self._led(request.name)
        before = replica.log.reader.segments
        await truncate_before(replica, Offset(request.before))
        oldest, log_start_offset = replica.log.reader.segments[0], replica.readable.log_start_offset
        return TruncateStreamResponse(
            name=replica.name,
            log_start_offset=log_start_offset,
            high_watermark=replica.high_watermark,
            freed_bytes=sum(segment.size for segment in before if segment.next <= oldest.base),
            frees_more_at=oldest.next if oldest.base < replica.log.log_start_offset else None,
        )

    async def _set_txid(self, request: SetTxidRequest) -> SetTxidResponse:
        replica, leading = await self._led(request.name)
        command = SetTxid(
            stream=replica.name,
            incarnation=replica.incarnation,
            leader=self._node_id,
            leader_epoch=leading.leader_epoch,
            offset=replica.log.log_end_offset,
            txid=request.txid,
        )
        await self._propose(command)
        last_txid = leading.last_txid
        if replica.leading is not leading or last_txid is None:
            raise StreamOffline(f"the txid is set, but another node leads stream {replica.name} by now")
        text = "txid set stream=%s offset=%d txid=%d last_txid=%d runbook=RB-14"
        _log.warning(text, replica.name, command.offset, command.txid, last_txid)
        return SetTxidResponse(
            name=replica.name, offset=command.offset, txid=command.txid, last_txid=last_txid
        )

    async def _led(self, name: str) -> tuple[StreamReplica, LeadingStream]:
        """Return a stream that this node leads, and the reign, once that is confirmed.

        Raises:
            UnknownStream: there is none.
            StreamOffline: another node leads it, or may by now.
        """
        stream = self._known(name)
        await confirm_reign(self._streams, name)
        replica = self._streams.stream(stream.name)
        if replica is None or replica.leading is None:
            raise StreamOffline(f"stream {stream.name} is not led by this node")
        return replica, replica.leading

    # --- questions -------------------------------------------------------------------------------

    def _known(self, name: str) -> Stream:
        stream = self._catalog.stream(StreamName(name))
        if stream is None:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return stream

    def _info(self, stream: Stream) -> StreamInfo:
        return stream_info(stream, self._streams, self._services.interruption(), self._services.clock.wall())

    def cluster_info(self) -> ClusterInfo:
        """Return the nodes of the cluster, and which are alive if this node knows."""
        return self._cluster.info()


def _has_applied(info: StreamInfo, changed: Stream) -> bool:
    """Return whether a leader knows of a change; the move of replicas that it began may be over by now."""
    moved = changed.config.model_copy(update={"replicas": len(changed.target or changed.replicas)})
    target = None if changed.target is None else list(changed.target)
    is_known = (info.config, info.target) in ((changed.config, target), (moved, None))
    return is_known and info.read_replicas == list(changed.read_replicas)


def _waits_for_others(info: StreamInfo, catalog: Catalog) -> bool:
    partition, of = info.config.partition, info.config.partition_of
    if partition is None or info.reason_code != PartitionsMissing.err_code:
        return False
    return partition >= catalog.partitions_of(of or "")


def _answers_at() -> float:
    """Return when a creation that is asked for now is answered at the latest, on the loop's clock."""
    return asyncio.get_running_loop().time() + READY_SECONDS


def _listed(request: ListStreamsRequest, catalog: Catalog, streams: NodeStreams) -> ListStreamsResponse:
    prefix = request.prefix or ""
    matching = [
        stream
        for stream in catalog.streams()
        if stream.name.startswith(prefix) and (request.internal or not is_internal(stream.name))
    ]
    summaries = (stream_summary(stream, streams) for stream in matching[request.offset :])
    return list_page(request, len(matching), summaries)


def _time_reset(replica: StreamReplica, leading: LeadingStream) -> ResetStreamTimeResponse:
    before, now = leading.reset_time()
    if now != before:
        text = "time of stream reset stream=%s before=%s now=%s"
        _log.warning(text, replica.name, utc(before), utc(now))
    return ResetStreamTimeResponse(name=replica.name, before=utc(before), time=utc(now))
