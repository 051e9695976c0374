"""Answers what members of consumer groups ask on their sockets: whom to ask, how to say it."""

import logging
import secrets
from asyncio import TaskGroup
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Final, assert_never

from consumer_groups.assignment.partitions import GroupName, MemberId
from consumer_groups.coordinator.events import Assignment, Beat, ConnectionId, Left
from consumer_groups.shard.events import (
    Answer,
    CursorsCommitted,
    CursorsFound,
    HeartbeatAnswer,
    RequestFailed,
)
from envelope.errors import InternalError, JetstreamError, LimitReached
from envelope.limits import FRAME_HEADER_BYTES_MAX
from jetstream.node.groups.shard import GroupShard
from jetstream.node.groups.shards import GroupService
from jetstream.node.readers.reader_connection import Pending, ReaderConnection
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    FindCoordinator,
    GroupRequest,
    JoinGroup,
    LeaveGroup,
    ReleasePartitions,
    SendHeartbeat,
)
from jetstream.protocol.group_responses import (
    AssignmentResponse,
    CommittedResponse,
    CoordinatorResponse,
    CursorsResponse,
    HeartbeatResponse,
    LeftResponse,
    MemberAssignment,
    MemberRefusal,
    StoredCursor,
)
from jetstream.protocol.responses import Response, encode_response, error_body
from metadata.api.responses import CoordinatorInfo

_log = logging.getLogger(__name__)

_NS_PER_MS: Final = 1_000_000


class GroupRequestHandler:
    """For all connections of a node; used on the loop's thread."""

    def __init__(
        self,
        service: GroupService,
        find_coordinator: Callable[[str], Awaitable[CoordinatorInfo]],
        tasks: TaskGroup,
    ) -> None:
        self._service = service
        self._find_coordinator = find_coordinator
        self._tasks = tasks
        self._connections: dict[ReaderConnection, ConnectionId] = {}
        self._numbers = count(1)

    def answer(self, pending: Pending, request: FindCoordinator | GroupRequest) -> None:
        """Answer now or later.

        Raises:
            JetstreamError: the refusal, to be sent instead.
        """
        match request:
            case FindCoordinator():
                self._tasks.create_task(self._guarded(pending, self._found(pending, request)))
            case SendHeartbeat():
                self._beat(pending, request)
            case FetchCursors():
                self._tasks.create_task(self._guarded(pending, self._fetch(pending, request)))
            case _:
                self._ask(pending, request)

    def forget(self, connection: ReaderConnection) -> None:
        """Drop what waits for a connection that is gone."""
        known = self._connections.pop(connection, None)
        if known is not None:
            self._service.closed(known)

    # --- members -----------------------------------------------------------------------------------

    def _ask(
        self, pending: Pending, request: JoinGroup | ReleasePartitions | LeaveGroup | CommitCursors
    ) -> None:
        shard, group = self._service.shard_of(request.group), GroupName(request.group)
        shard.require_writable()
        connection = self._connection(pending)
        done = partial(self._done, pending, group)
        match request:
            case JoinGroup():
                fresh_id = MemberId(secrets.token_hex(12))
                shard.join(group, request.join(connection, fresh_id), done)
            case ReleasePartitions():
                shard.ask(group, request.release(connection), done)
            case LeaveGroup():
                shard.ask(group, request.leave(connection), done)
            case CommitCursors():
                shard.ask(group, request.commit(connection), done)
            case _:
                assert_never(request)

    def _connection(self, pending: Pending) -> ConnectionId:
        connection = self._connections.get(pending.connection)
        if connection is None:
            connection = self._connections[pending.connection] = ConnectionId(str(next(self._numbers)))
        return connection

    def _done(self, pending: Pending, group: GroupName, answer: Answer) -> None:
        number = pending.request.id
        match answer:
            case RequestFailed(error):
                _fail(pending, error)
            case Assignment():
                assignment = self._on_wire(group, answer)
                _respond(pending, AssignmentResponse(id=number, assignment=assignment))
            case Left():
                _respond(pending, LeftResponse(id=number))
            case CursorsCommitted(superseded):
                _respond(pending, CommittedResponse(id=number, superseded=superseded))
            case CursorsFound(cursors):
                told = [StoredCursor.of(cursor) for cursor in cursors]
                _respond(pending, CursorsResponse(id=number, cursors=told))
            case _:
                raise InternalError(f"{type(answer).__name__} to a member")

    def _on_wire(self, group: GroupName, assignment: Assignment) -> MemberAssignment:
        return MemberAssignment.of(group, assignment, self._service.streams.is_partitioned)

    # --- heartbeats --------------------------------------------------------------------------------

    def _beat(self, pending: Pending, request: SendHeartbeat) -> None:
        beats: dict[GroupShard, list[tuple[GroupName, Beat]]] = {}
        refused: list[MemberRefusal] = []
        for beat in request.beats:
            group = GroupName(beat.group)
            try:
                pending.connection.rights.require_membership(group)
                beats.setdefault(self._service.shard_of(group), []).append((group, beat.beat()))
            except JetstreamError as error:
                connection = pending.connection
                _ = connection.ticket_refusals.note(connection.peer, request.op, group, error)
                refused.append(_refusal(group, beat.member, error))
        news = _News(refused, partial(self._respond_news, pending))
        wait_ns = request.max_wait_ms * _NS_PER_MS
        for shard, of_shard in beats.items():
            news.expect()
            try:
                shard.beat(
                    self._connection(pending), tuple(of_shard), wait_ns, partial(self._add, news, of_shard)
                )
            except JetstreamError as error:
                self._add(news, of_shard, RequestFailed(error))
        pending.withdraw = partial(self._end_wait, pending, news, tuple(beats))
        news.all_are_asked()

    def _end_wait(self, pending: Pending, news: "_News", shards: tuple[GroupShard, ...]) -> None:
        """End the wait of a heartbeat that is cancelled; its members have been heard."""
        news.drop()
        for shard in shards:
            shard.closed(self._connection(pending))

    def _add(self, news: "_News", beats: list[tuple[GroupName, Beat]], answer: Answer) -> None:
        match answer:
            case HeartbeatAnswer(assignments, refused):
                news.add(
                    [self._on_wire(group, assignment) for group, assignment in assignments],
                    [_refusal(group, member, why.as_error()) for group, member, why in refused],
                )
            case RequestFailed(error):
                news.add([], [_refusal(group, beat.member_id, error) for group, beat in beats])
            case _:
                raise InternalError(f"{type(answer).__name__} to a heartbeat")

    def _respond_news(
        self, pending: Pending, assignments: list[MemberAssignment], refused: list[MemberRefusal]
    ) -> None:
        response = HeartbeatResponse(id=pending.request.id, assignments=assignments, refused=refused)
        _respond(pending, _fitting(response))

    # --- what takes its time -----------------------------------------------------------------------

    async def _guarded(self, pending: Pending, work: Awaitable[None]) -> None:
        try:
            await work
        except JetstreamError as error:
            _fail(pending, error)

    async def _found(self, pending: Pending, request: FindCoordinator) -> None:
        found = await self._find_coordinator(request.group)
        response = CoordinatorResponse(id=request.id, node=found.node, host=found.host, port=found.port)
        _respond(pending, response)

    async def _fetch(self, pending: Pending, request: FetchCursors) -> None:
        shard = self._service.shard_of(request.group)
        # A coordinator that was deposed would return an old cursor.
        await self._service.confirm_leadership(shard)
        group = GroupName(request.group)
        shard.ask(group, request.look_up(), partial(self._done, pending, group))


class _News:
    """The news of one heartbeat, of one shard or of several; sent once there is any, or all have none."""

    def __init__(
        self,
        refused: list[MemberRefusal],
        respond: Callable[[list[MemberAssignment], list[MemberRefusal]], None],
    ) -> None:
        self._assignments: list[MemberAssignment] = []
        self._refused = refused
        self._respond = respond
        self._expected = 0
        self._is_asked = self._has_responded = False

    def expect(self) -> None:
        """Count one more shard that is asked."""
        self._expected += 1

    def add(self, assignments: list[MemberAssignment], refused: list[MemberRefusal]) -> None:
        """Add the answer of one shard; late news goes to the next heartbeat."""
        self._expected -= 1
        self._assignments += assignments
        self._refused += refused
        self._respond_if_due()

    def drop(self) -> None:
        """Respond no more; what is new goes to the next heartbeat."""
        self._has_responded = True

    def all_are_asked(self) -> None:
        """All shards are asked."""
        self._is_asked = True
        self._respond_if_due()

    def _respond_if_due(self) -> None:
        has_news = bool(self._assignments or self._refused)
        if self._is_asked and not self._has_responded and (has_news or not self._expected):
            self._has_responded = True
            self._respond(self._assignments, self._refused)


def _fitting(response: HeartbeatResponse) -> HeartbeatResponse:
    """Return as much of the news as one frame holds: the next heartbeat is answered with the rest at once."""
    news = len(response.assignments) + len(response.refused)
    while news > 1 and len(encode_response(response)) > FRAME_HEADER_BYTES_MAX:
        news //= 2
        refused = response.refused[:news]
        assignments = response.assignments[: news - len(refused)]
        response = HeartbeatResponse(id=response.id, assignments=assignments, refused=refused)
    return response


def _respond(pending: Pending, response: Response) -> None:
    if pending.connection.closed:
        return
    is_bounded = isinstance(response, CommittedResponse | LeftResponse | CoordinatorResponse)
    if not is_bounded and len(encode_response(response)) > FRAME_HEADER_BYTES_MAX:
        error = LimitReached(f"the answer has more than {FRAME_HEADER_BYTES_MAX} bytes: ask for less")
        pending.connection.fail(pending.request.id, error)
        return
    pending.connection.respond(response)


def _refusal(group: str, member: str, error: JetstreamError) -> MemberRefusal:
    return MemberRefusal(group=group, member=member, error=error_body(error))


def _fail(pending: Pending, error: JetstreamError) -> None:
    if not pending.connection.closed:
        pending.connection.fail(pending.request.id, error)
