"""The request API: any node takes a request, the one that knows answers.

All nodes of a cluster share the subscription to the API's subjects, so that NATS gives each request to one of
them. A request that another node answers better (`metadata.api.routing`) is sent on to it. A change goes
through the catalogue, which tells the nodes' streams; a crash in between is finished at the next start.
"""

import asyncio
import logging
from typing import Final, get_args

from envelope.acks import publish_command
from envelope.errors import JetstreamError, NoResponders, NotLeader, Overloaded, UnavailableError
from envelope.types import NodeId, StreamName, TimestampUs
from jetstream.node.api.internal_streams import keep_audit_stream
from jetstream.node.api.operations import (
    LOOK_SECONDS,
    QUESTION_SECONDS,
    READY_SECONDS,
    ApiOperations,
    ApiServices,
)
from jetstream.node.api.placement import Placing
from jetstream.node.cluster.discovery import DISCOVERY_WORD
from jetstream.node.nats.audit_trail import AuditTrail
from jetstream.node.nats.link import ServiceRequest
from metadata.api.audit import AuditEvent, client_of, requested_change
from metadata.api.requests import (
    QUESTIONS,
    REQUESTS,
    ClusterInfoRequest,
    FindCoordinatorRequest,
    ListStreamsRequest,
    Request,
    StoredQuestion,
    StreamInfoRequest,
    StreamPublishersRequest,
)
from metadata.api.responses import CoordinatorInfo, StreamInfo
from metadata.api.routing import home_of, node_subject
from metadata.api.subjects import named_patterns
from metadata.api.wire import (
    decode_response,
    encode_error,
    encode_request,
    encode_response,
    parse_request,
    reported_error,
    request_too_large,
)
from metadata.node.catalogue.group import MetadataQuorum

_log = logging.getLogger(__name__)

_REQUESTS_WAITING_MAX: Final = 1024
_REQUESTS_AT_ONCE: Final = 16
_QUESTIONS: Final = tuple(
    name for name, model in REQUESTS.items() if model in (StreamInfoRequest, *get_args(StoredQuestion))
)
"""What the subjects of questions about one stream, cursor or group begin with, behind the prefix."""
_HOME_SECONDS: Final = READY_SECONDS + 2.0
"""How long another node may take to answer; one that is dead is known at once, as NATS knows who listens."""
_HOME_NS: Final = 5_000_000_000
"""How long a request waits for somebody to lead."""
_INFO_NS: Final = 3_000_000_000
"""The same of a question about a stream, a cursor or a group: an election takes less, and who asks waits
5 s for the answer."""


class RequestApi:
    """Answers ``<prefix>.>``; used on the loop's thread."""

    def __init__(
        self,
        prefix: str,
        node_id: NodeId,
        metadata: MetadataQuorum,
        operations: ApiOperations,
        services: ApiServices,
        *,
        names_in_subjects: bool,
    ) -> None:
        """``names_in_subjects``: refuse requests that name what they are about in their payload alone."""
        self._prefix = prefix
        self._names_in_subjects = names_in_subjects
        self._node_id = node_id
        self._metadata = metadata
        self._operations = operations
        self._services = services
        self._waiting: asyncio.Queue[ServiceRequest] = asyncio.Queue(_REQUESTS_WAITING_MAX)
        self._questions: asyncio.Queue[ServiceRequest] = asyncio.Queue(_REQUESTS_WAITING_MAX)
        """About one stream or group: they wait for its leader, and nobody else for them."""

    @property
    def audit(self) -> AuditTrail:
        """Where changes are noted."""
        return self._services.audit

    async def attach(self) -> None:
        """Subscribe; the server has the subscriptions on return."""
        await self._services.link.serve(node_subject(self._prefix, self._node_id, ">"), self._take)
        # Not '>': who asks one node must hear from NATS at once that it is gone.
        for shape in ("*", "*.*", *named_patterns()):
            await self._services.link.serve(f"{self._prefix}.{shape}", self._take_shared, queue=self._prefix)

    async def coordinator(self, group: str) -> CoordinatorInfo:
        """Return where a group's coordinator is; its shard is made if there is none.

        Raises:
            InvalidName: no group can be called that.
            UnavailableError: nobody leads the shard now, or it cannot be made now.
        """
        request = FindCoordinatorRequest(group=group)
        answer = await self._answer_at_home(request, "group.coordinator", encode_request(request))
        return decode_response(CoordinatorInfo, answer)

    async def question(self, name: str, request: Request) -> bytes:
        """Return the answer to a question, which changes nothing, as it is sent over NATS.

        Args:
            name: of the request, as ``stream.info``.
            request: one of `QUESTIONS`.

        Raises:
            JetstreamError: the typed refusal, unless the answer reports it.
        """
        assert type(request) in QUESTIONS, f"{name} changes something"
        return await self._answer_at_home(request, name, encode_request(request))

    def _take_shared(self, message: ServiceRequest) -> None:
        if message.subject != f"{self._prefix}.{DISCOVERY_WORD}":  # every node answers that
            self._take(message)

    def _take(self, message: ServiceRequest) -> None:
        is_question = self._suffix(message.subject)[0].startswith(_QUESTIONS)
        try:
            (self._questions if is_question else self._waiting).put_nowait(message)
        except asyncio.QueueFull:
            error = Overloaded(f"{_REQUESTS_WAITING_MAX} requests are waiting")
            self._note(message, message.payload, self._services.clock.wall(), error)
            if message.reply:
                answer = publish_command(message.reply, encode_error(error))
                self._services.link.publish_raw(answer, lambda: None)

    async def run(self) -> None:
        """Answer requests until cancelled, a few at a time: one may wait for another node."""
        audit, clock, alive = self._services.audit, self._services.clock, self._services.alive
        async with asyncio.TaskGroup() as workers:
            for requests in (self._waiting, self._questions):
                for _ in range(_REQUESTS_AT_ONCE):
                    workers.create_task(self._work(requests))
            if audit.settings.enabled:
                placing = Placing(self._prefix, self._metadata, clock, alive)
                workers.create_task(audit.run())
                workers.create_task(
                    keep_audit_stream(audit.settings.retention, self._prefix, self._metadata, placing)
                )

    async def stop(self) -> None:
        """Give the audit's records time to be stored; requests are answered as before."""
        await self._services.audit.stop()

    async def _work(self, requests: "asyncio.Queue[ServiceRequest]") -> None:
        while True:
            await self._respond(await requests.get())

    async def _respond(self, message: ServiceRequest) -> None:
        suffix, is_sent_on = self._suffix(message.subject)
        requested_at = self._services.clock.wall()
        request: Request | bytes = message.payload
        refusal: JetstreamError | None = None
        try:
            if message.unread_bytes:
                raise request_too_large(message.unread_bytes)
            needs_name = self._names_in_subjects and not is_sent_on
            request = parse_request(suffix, message.payload, names_in_subjects=needs_name)
            if is_sent_on:
                answer = encode_response(await self._operations.answer(request))
            else:
                answer = await self._answer_at_home(request, suffix, message.payload)
                refusal = None if type(request) in QUESTIONS else reported_error(answer)
        except JetstreamError as error:
            refusal, answer = error, encode_error(error)
        except asyncio.CancelledError:  # this node stops; another one may be about to do it
            self._note(message, request, requested_at, UnavailableError("the node stopped meanwhile"))
            raise
        self._note(message, request, requested_at, refusal)
        if message.reply:
            await self._services.link.publish(message.reply, answer)

    def _note(
        self,
        message: ServiceRequest,
        request: Request | bytes,
        requested_at: TimestampUs,
        refusal: JetstreamError | None,
    ) -> None:
        """Put a change on the audit trail, unless the node that has sent it on does so; log a refusal."""
        suffix, is_sent_on = self._suffix(message.subject)
        change = requested_change(suffix, request)
        # Nodes are in one account: what came out of another was sent on by none of them.
        if change is not None and (not is_sent_on or client_of(message.headers) is not None):
            operation, name = change
            self._services.audit.note(
                AuditEvent(
                    operation=operation,
                    name=name,
                    time=requested_at,
                    error=refusal,
                    headers=message.headers,
                )
            )
        elif refusal is not None:
            _log.info("request refused request=%s error=%s", suffix, refusal)

    def _suffix(self, subject: str) -> tuple[str, bool]:
        """Return what is behind the prefix, and whether this node alone was asked: who checks has done so."""
        own = node_subject(self._prefix, self._node_id, "")
        is_sent_on = subject.startswith(own)
        return subject.removeprefix(own if is_sent_on else f"{self._prefix}."), is_sent_on

    async def _answer_at_home(self, request: Request, suffix: str, data: bytes) -> bytes:
        """Return the answer of whoever is to give it; who that is may be decided only now.

        Raises:
            JetstreamError: the typed refusal, to be sent instead.
        """
        is_repeatable = isinstance(request, StreamInfoRequest | StoredQuestion)
        patience_ns = _INFO_NS if is_repeatable else _HOME_NS
        gives_up_at = self._services.clock.monotonic() + patience_ns
        while True:
            try:
                return await self._ask_home(request, suffix, data)
            except UnavailableError as error:
                # Nothing was done: a leader has gone, and another comes, if there is one.
                is_safe = is_repeatable or isinstance(error, NotLeader | NoResponders)
                is_over = isinstance(error, NoResponders) and self._has_no_heir(request)
                if not is_safe or is_over or self._services.clock.monotonic() > gives_up_at:
                    if isinstance(request, StreamInfoRequest) and not self._needs_all(request):
                        return await self._last_known(request)
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    def _has_no_heir(self, request: Request) -> bool:
        """Return whether the question is about a stream that nobody but its leader can lead."""
        if not isinstance(request, StreamInfoRequest):
            return False
        row = self._metadata.catalog.stream(StreamName(request.name))
        return row is not None and len(row.isr_nodes) == 1

    def _needs_all(self, request: Request) -> bool:
        """Return whether an old catalogue may answer it wrongly: a list, or that there is no such stream."""
        match request:
            case ListStreamsRequest(internal=True):
                return True
            case StreamInfoRequest(name=name) | StreamPublishersRequest(name=name):
                return self._metadata.catalog.stream(StreamName(name)) is None
            case _:
                return False

    async def _last_known(self, request: StreamInfoRequest) -> bytes:
        """Return the catalogue's part of the info of a stream whose leader does not answer."""
        info = await self._operations.answer(request, is_live=False)
        if isinstance(info, StreamInfo) and info.leader not in (None, self._node_id):
            info = info.model_copy(update={"reason": f"{info.leader}, its leader, does not answer"})
        return encode_response(info)

    async def _ask_home(self, request: Request, suffix: str, data: bytes) -> bytes:
        home = home_of(request, self._metadata.catalog, self._metadata.leader)
        if home is None and self._metadata.leader is None and self._needs_all(request):
            raise NotLeader("this node knows no metadata leader: its catalogue may be old")
        if home in (None, self._node_id):
            return encode_response(await self._operations.answer(request))
        subject = node_subject(self._prefix, home, suffix)
        is_question = isinstance(request, StreamInfoRequest | ClusterInfoRequest | StoredQuestion)
        seconds = QUESTION_SECONDS if is_question else _HOME_SECONDS
        try:
            answer = await self._services.link.request(subject, data, seconds)
        except UnavailableError:
            if not isinstance(request, ClusterInfoRequest):
                raise
            # The addresses are in every catalogue: clients get them also while there is no metadata leader.
            return encode_response(self._operations.cluster_info())
        refusal = reported_error(answer)
        if isinstance(refusal, NotLeader) or (
            isinstance(request, StreamInfoRequest | StoredQuestion) and isinstance(refusal, UnavailableError)
        ):
            raise refusal
        return answer
