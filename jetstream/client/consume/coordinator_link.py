"""Connections to the coordinators of groups: requests, and heartbeats for all members of a client at once.

A heartbeat is a long poll. It has, for every member on its connection, the last assignment that the member
has; the coordinator answers once it has news for one of them. So news reach a member within a round trip, and
a node with many members on one connection has one request of them. A member that comes, goes or has a newer
assignment sends another heartbeat, which the coordinator takes instead of the one that it keeps.

These connections are not those on which records are read: there heartbeats would wait behind records, and
find no room among the fetches that wait at the ends of many partitions.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from consumer_groups.coordinator.events import ConnectionId
from envelope.errors import ConnectionLost, DeadlinePassed, InvalidTicket, JetstreamError, NotLeader
from envelope.limits import FETCH_WAIT_MS_MAX
from jetstream.client.nodes.background import Background
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.socket_link import Answer, SocketLink
from jetstream.client.nodes.tickets import GroupRight, HeldRight
from jetstream.protocol.group_requests import HEARTBEAT_MEMBERS_MAX, MemberBeat, SendHeartbeat
from jetstream.protocol.group_responses import HeartbeatResponse, MemberAssignment
from jetstream.protocol.requests import Request
from jetstream.protocol.responses import Response, error_of

HEARTBEATS_IN_SESSION: Final = 3
"""So many are sent while a session lasts, or more."""
_PAUSE_S: Final = 0.1
"""After a heartbeat that could not be answered for some member."""


class BeatingMember(Protocol):
    """The member that a heartbeat is for; known by its group and its member id."""

    @property
    def session_timeout_s(self) -> float:
        """How long it may be unheard."""

    def beat(self) -> MemberBeat | None:
        """Return the member's part of a heartbeat; None: nothing now."""

    def assigned(self, connection: ConnectionId, assignment: MemberAssignment) -> None:
        """Handle an assignment, its own or another's."""

    def refused(self, connection: ConnectionId, beat: MemberBeat, error: JetstreamError) -> None:
        """Handle the refusal of a member, or of its generation, by the coordinator."""

    def disconnected(self, connection: ConnectionId) -> None:
        """Handle the end of a connection."""


class GroupLink:
    """A connection to a node that coordinates groups.

    Invariant:
        C21: every member on it is notified of its end, unless it has gone before, or the
            client is closed.
            Held by test_a_coordinator_that_is_killed_stops_no_consumer.
    """

    def __init__(
        self, connection: ConnectionId, link: SocketLink, timeout_s: float, tasks: Background
    ) -> None:
        """``timeout_s``: for an answer."""
        self.connection: Final = connection
        self.link: Final = link
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._members: list[BeatingMember] = []
        self._running: asyncio.Task[None] | None = None
        self._due = asyncio.Event()
        self._newest = -1
        self._pauses = False

    async def ask(self, request_of: Callable[[int], Request]) -> Response:
        """Return the answer to a request, which ``request_of`` makes of its number.

        Raises:
            DeadlinePassed: no answer in time, outcome unknown.
            ConnectionLost: the connection is gone, outcome unknown.
            JetstreamError: the answer.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return (await self.link.ask(request_of(self.link.next_id()))).response
        except TimeoutError:
            text = f"node {self.link.node} did not answer within {self._timeout_s:g} s"
            raise DeadlinePassed(text) from None

    def add(self, member: BeatingMember) -> None:
        """Let heartbeats speak of a member too."""
        self._members.append(member)
        self._due.set()
        if self._running is None:
            self._running = self._tasks.start(self._run())

    def discard(self, member: BeatingMember) -> None:
        """Let them speak of it no more."""
        if member in self._members:
            self._members.remove(member)
            self._due.set()

    def wake(self) -> None:
        """Send the next heartbeat now, as its content has changed."""
        self._due.set()

    async def _run(self) -> None:
        """Send heartbeats as long as there are members and a connection."""
        while self._members and not self.link.closed:
            self._due.clear()
            beats = [beat for member in self._members if (beat := member.beat()) is not None]
            if beats:
                self._send(beats)
            await self._wait(is_sent=bool(beats))
            if self._pauses:
                self._pauses = False
                await asyncio.sleep(_PAUSE_S)
        self._running = None
        members, self._members = self._members, []
        for member in members:
            member.disconnected(self.connection)

    @property
    def _wait_s(self) -> float:
        sessions = [member.session_timeout_s for member in self._members]
        return min((*sessions, FETCH_WAIT_MS_MAX / 1000)) / HEARTBEATS_IN_SESSION

    def _send(self, beats: list[MemberBeat]) -> None:
        """Send one heartbeat; of several, if there are too many members for one, the last waits for news."""
        for start in range(0, len(beats), HEARTBEAT_MEMBERS_MAX):
            some = beats[start : start + HEARTBEAT_MEMBERS_MAX]
            is_last = start + HEARTBEAT_MEMBERS_MAX >= len(beats)
            wait_ms = int(1000 * self._wait_s) if is_last else 0
            heartbeat = SendHeartbeat(id=self.link.next_id(), beats=some, max_wait_ms=wait_ms)
            self._newest = heartbeat.id
            try:
                self.link.send(heartbeat, partial(self._answered, heartbeat))
            except JetstreamError as error:
                self._answered(heartbeat, error)

    async def _wait(self, *, is_sent: bool) -> None:
        """Return when the next heartbeat is due; close a connection whose node is silent."""
        limit_s = self._wait_s + self._timeout_s if is_sent else None
        received = self.link.received
        try:
            async with asyncio.timeout(limit_s):
                await self._due.wait()
        except TimeoutError:
            if self.link.received == received:
                self.link.close()

    def _answered(self, heartbeat: SendHeartbeat, outcome: Answer | JetstreamError) -> None:
        if isinstance(outcome, JetstreamError):
            self._refuse(heartbeat.beats, outcome)
        else:
            response = outcome.response
            assert isinstance(response, HeartbeatResponse), "C1: a response has its request's type"
            self._deliver(heartbeat, response)
        if heartbeat.id == self._newest:
            self._due.set()

    def _deliver(self, heartbeat: SendHeartbeat, response: HeartbeatResponse) -> None:
        for assignment in response.assignments:
            for member in tuple(self._members):
                member.assigned(self.connection, assignment)
        for refused in response.refused:
            named = (
                beat
                for beat in heartbeat.beats
                if (beat.group, beat.member) == (refused.group, refused.member)
            )
            self._refuse(list(named), error_of(refused.error))

    def _refuse(self, beats: list[MemberBeat], error: JetstreamError) -> None:
        self._pauses = self._pauses or error.retriable
        for beat in beats:
            for member in tuple(self._members):
                member.refused(self.connection, beat, error)


class GroupLinks:
    """The connections to coordinators, each with the heartbeats of all members there."""

    def __init__(self, links: NodeLinks, timeout_s: float, tasks: Background) -> None:
        """Connect by ``links``, which has no other user; ``timeout_s``: for an answer."""
        self._links = links
        self._timeout_s = timeout_s
        self._tasks = tasks
        self._by_node: dict[str, GroupLink] = {}
        self._found = 0
        self._held: dict[str, HeldRight] = {}
        """The right to each group that was looked for."""

    def close(self) -> None:
        """Close the connections."""
        self._links.close()

    async def find(self, group: str) -> GroupLink:
        """Return the way to the coordinator of ``group``; raises as `NodeLinks.coordinator_of`."""
        held = self._held.setdefault(group, HeldRight(GroupRight(group)))
        link = await self._links.coordinator_of(group, held)
        known = self._by_node.get(link.node)
        if known is not None and known.link is link:
            return known
        self._found += 1
        connection = ConnectionId(f"{link.node}#{self._found}")
        found = self._by_node[link.node] = GroupLink(connection, link, self._timeout_s, self._tasks)
        return found


def has_lost(error: JetstreamError) -> bool:
    """Return whether a failure means that the coordinator has to be looked up again."""
    return isinstance(error, ConnectionLost | DeadlinePassed | InvalidTicket | NotLeader)
