"""A client's membership in a group: performs the machine's actions, gives it the coordinator's answers."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, assert_never

from consumer_groups.assignment.partitions import Claim, Partition
from consumer_groups.coordinator.events import (
    Assigned,
    ConnectionId,
    CoordinatorRefusal,
    Join,
    Joined,
    JoinRefused,
    Leave,
    Left,
    MemberRefused,
    Release,
    SetTimer,
    StoreCursors,
    Tick,
)
from consumer_groups.member.commits import CursorCommit
from consumer_groups.member.events import (
    CoordinatorFound,
    CoordinatorLost,
    CoordinatorRefused,
    Ended,
    LocateCoordinator,
    Lost,
    MemberAction,
    MemberEvent,
    MemberRequest,
    StartReading,
    StopReading,
)
from consumer_groups.member.member import Member, Terms
from envelope.errors import JetstreamError
from envelope.types import MonotonicNs
from jetstream.client.consume.coordinator_link import GroupLink, GroupLinks, has_lost
from jetstream.protocol.group_requests import JoinGroup, LeaveGroup, MemberBeat, ReleasePartitions
from jetstream.protocol.group_responses import AssignmentResponse, MemberAssignment
from jetstream.protocol.requests import Request
from jetstream.protocol.responses import Response

_log = logging.getLogger(__name__)

_NS: Final = 1_000_000_000
_BACKOFF_S_MIN: Final = 0.02
_BACKOFF_S_MAX: Final = 2.0
_LASTING_S: Final = 1.0
"""What fails for so long is worth a warning: before that it may be a coordinator that begins."""
_WARN_AGAIN_S: Final = 30.0


class Reading(Protocol):
    """The reader of a member's partitions; none of its methods waits."""

    def start(self, partitions: Mapping[Claim, str]) -> None:
        """Read these claims, each from the stream that is named, from the group's cursors on."""

    def stop(self, claims: tuple[Claim, ...]) -> None:
        """Hand out nothing more of these, commit, and give `StoppedReading`."""

    def lose(self, claims: tuple[Claim, ...]) -> None:
        """Hand out nothing more of these, and commit nothing for them."""


@dataclass(frozen=True, slots=True)
class MemberServices:
    """The consumer's parts that a membership uses."""

    links: GroupLinks
    tasks: asyncio.TaskGroup
    reading: Reading
    ended: Callable[[JetstreamError | None], None]
    """Called when there is no membership any more: because of an error, or as it was wanted."""


class GroupMembership:
    """Runs one `Member`."""

    def __init__(self, group: str, terms: Terms, services: MemberServices) -> None:
        self._group = group
        self._machine = Member(terms)
        self._services = services
        self._tasks: asyncio.TaskGroup = services.tasks
        self._session_timeout_s = terms.session_timeout_ns / _NS
        self._loop = asyncio.get_running_loop()
        self._link: GroupLink | None = None
        self._has_link = asyncio.Event()
        self._names: Mapping[Partition, str] = {}
        """The streams that the partitions of the assignment are which is taken in."""
        self._beat: MemberBeat | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failing_since: float | None = None
        self._warned_at: float | None = None
        """Both by the loop's clock, seconds; None while nothing is wrong."""

    def __str__(self) -> str:
        return f"group={self._group} {self._machine}"

    def give(self, event: MemberEvent) -> None:
        """Handle an event of the machine, and perform its actions."""
        for action in self._machine.handle(event, MonotonicNs(time.monotonic_ns())):
            self._perform(action)
        beat = self.beat()
        if beat != self._beat and self._link is not None:
            self._beat = beat
            self._link.wake()

    async def ask(self, request_of: Callable[[int], Request]) -> Response:
        """Ask the coordinator, also its successors, until there is an answer.

        Raises:
            JetstreamError: the answer, if another attempt is no use.
        """
        attempt = 0
        while True:
            while (link := self._link) is None:  # it may be lost again before this goes on
                await self._has_link.wait()
            try:
                return self._succeeded(await link.ask(request_of))
            except JetstreamError as error:
                if not error.retriable:
                    raise
                self._has_failed(link.connection, error)
            await _back_off(attempt)
            attempt += 1

    def commit(self, commit: CursorCommit) -> StoreCursors | None:
        """Return the request of a commit, to be asked until it is answered; None without a membership."""
        return self._machine.commit(commit)

    def close(self) -> None:
        """Send nothing from now on: the session ends by itself."""
        if self._timer is not None:
            self._timer.cancel()
        self._drop_link()

    # --- what the machine wants ---------------------------------------------------------------------------

    def _perform(self, action: MemberAction) -> None:
        services = self._services
        match action:
            case Join() | Release() | Leave():
                self._tasks.create_task(self._send(action))
            case LocateCoordinator():
                self._drop_link()
                self._tasks.create_task(self._find())
            case SetTimer(at):
                delay_s = max(0, at - time.monotonic_ns()) / _NS
                self._timer = self._loop.call_later(delay_s, self.give, Tick())
            case StartReading(claims):
                services.reading.start({claim: self._names[claim.partition] for claim in claims})
            case StopReading(claims):
                services.reading.stop(claims)
            case Lost(claims):
                services.reading.lose(claims)
            case Ended(refusal):
                self.close()
                services.ended(None if refusal is None else refusal.as_error())
            case _:
                assert_never(action)

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.discard(self)
        self._link = self._beat = None
        self._has_link.clear()

    async def _find(self) -> None:
        attempt = 0
        while True:
            try:
                link = await self._services.links.find(self._group)
            except JetstreamError as error:
                if not error.retriable:
                    self.give(CoordinatorRefused(CoordinatorRefusal.of(error)))
                    return
                self._complain(error)
            else:
                self._link = link
                link.add(self)
                self._has_link.set()
                self.give(CoordinatorFound(link.connection))
                return
            await _back_off(attempt)
            attempt += 1

    async def _send(self, request: MemberRequest) -> None:
        """Send one request once; the machine has it sent again if it stays without an answer."""
        link = self._link
        if link is None or link.connection != request.connection:
            return
        try:
            response = self._succeeded(await link.ask(partial(_numbered, self._group, request)))
        except JetstreamError as error:
            self._has_failed(link.connection, error)
            self._refused(request, error)
            return
        match request:
            case Leave():
                self.give(Left(link.connection, request.member_id))
            case Join():
                assert isinstance(response, AssignmentResponse), "C1: a response has its request's type"
                self._assigned(link.connection, response.assignment, joined=request)
            case Release():
                assert isinstance(response, AssignmentResponse), "C1: a response has its request's type"
                self._assigned(link.connection, response.assignment)
            case _:
                assert_never(request)

    # --- answers and failures -----------------------------------------------------------------------------

    def _refused(self, request: MemberRequest, error: JetstreamError) -> None:
        refusal = CoordinatorRefusal.of(error)
        if isinstance(request, Join):
            self.give(JoinRefused(request.connection, request.client, request.request, refusal))
        else:
            self.give(MemberRefused(request.connection, request.member_id, refusal))

    def _assigned(
        self, connection: ConnectionId, response: MemberAssignment, joined: Join | None = None
    ) -> None:
        try:
            assignment, self._names = response.assignment()
        except JetstreamError as error:
            self.give(CoordinatorRefused(CoordinatorRefusal.of(error)))
            return
        if joined is None:
            self.give(Assigned(connection, assignment))
        else:
            self.give(Joined(connection, joined.client, joined.request, assignment))

    def _has_failed(self, connection: ConnectionId, error: JetstreamError) -> None:
        self._complain(error)
        if has_lost(error):
            self.give(CoordinatorLost(connection))

    def _succeeded(self, response: Response) -> Response:
        if self._warned_at is not None:
            _log.warning("%s has its coordinator again", self)
        self._failing_since = self._warned_at = None
        return response

    def _complain(self, error: JetstreamError) -> None:
        """Log a failure that is tried again: as a warning if it lasts, repeated at intervals."""
        now = self._loop.time()
        self._failing_since = self._failing_since or now
        lasts_s = now - self._failing_since
        if lasts_s < _LASTING_S or (self._warned_at is not None and now - self._warned_at < _WARN_AGAIN_S):
            _log.info("%s is to ask again error=%r", self, error)
            return
        self._warned_at = now
        _log.warning("%s has no answer since %.0f s, tries again error=%r", self, lasts_s, error)

    # --- heartbeats: `BeatingMember` ----------------------------------------------------------------------

    @property
    def session_timeout_s(self) -> float:
        """How long it may be unheard."""
        return self._session_timeout_s

    def beat(self) -> MemberBeat | None:
        """Return the member's part of a heartbeat; None: nothing now."""
        beat = self._machine.beat
        return None if beat is None else MemberBeat.of(self._group, beat)

    def assigned(self, connection: ConnectionId, assignment: MemberAssignment) -> None:
        """Handle an assignment; it may be another member's."""
        if assignment.group == self._group and assignment.member == self._machine.member_id:
            self._assigned(connection, assignment)

    def refused(self, connection: ConnectionId, beat: MemberBeat, error: JetstreamError) -> None:
        """Handle the refusal of a member; it may be another one."""
        if beat.group == self._group and beat.member == self._machine.member_id:
            self.give(MemberRefused(connection, self._machine.member_id, CoordinatorRefusal.of(error)))

    def disconnected(self, connection: ConnectionId) -> None:
        """Handle the end of a connection."""
        self.give(CoordinatorLost(connection))


def _numbered(group: str, request: MemberRequest, number: int) -> Request:
    match request:
        case Join():
            return JoinGroup.of(group, request, number)
        case Release():
            return ReleasePartitions.of(group, request, number)
        case Leave():
            return LeaveGroup.of(group, request, number)
        case _:
            assert_never(request)


async def _back_off(attempt: int) -> None:
    longest = min(_BACKOFF_S_MAX, _BACKOFF_S_MIN * 2 ** min(attempt, 16))
    await asyncio.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - spreads requests, no secret
