"""A member of a consumer group that says exactly what a test tells it to, over a real socket."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import uuid4

from envelope.errors import UnavailableError
from jetstream.client.nodes.socket_access import SocketAccess
from jetstream.client.nodes.socket_link import SocketLink
from jetstream.protocol.group_requests import (
    CommitCursors,
    FetchCursors,
    FindCoordinator,
    JoinGroup,
    LeaveGroup,
    MemberBeat,
    PartitionCursor,
    ReleasePartitions,
    SendHeartbeat,
    StreamClaims,
    StreamNumbers,
)
from jetstream.protocol.group_responses import (
    AssignmentResponse,
    CommittedResponse,
    CoordinatorResponse,
    CursorsResponse,
    HeartbeatResponse,
    LeftResponse,
    MemberAssignment,
)
from jetstream.protocol.requests import Request
from jetstream.protocol.responses import Response
from tests.support.nodes import WAIT_SECONDS
from tests.support.pauses import pause

R = TypeVar("R", bound=Response)

SESSION_MS = 10_000


@dataclass
class RawMember:
    """One member on a connection of its own, or on one that it shares."""

    link: SocketLink
    group: str
    streams: list[str]
    client: str = field(default_factory=lambda: uuid4().hex)
    instance: str | None = None
    session_ms: int = SESSION_MS
    member: str = ""
    generation: int = 0
    joins: int = 0
    commits: int = 0
    keeps: dict[tuple[str, int], int] = field(default_factory=dict)
    gives_up: dict[tuple[str, int], int] = field(default_factory=dict)

    async def ask(self, kind: type[R], request: Request) -> R:
        async with asyncio.timeout(WAIT_SECONDS):
            response = (await self.link.ask(request)).response
        assert isinstance(response, kind)
        return response

    async def join(self, **changes: object) -> None:
        self.joins += 1
        fields = {
            "id": self.link.next_id(),
            "group": self.group,
            "client": self.client,
            "number": self.joins,
            "streams": self.streams,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": SESSION_MS,
            "instance": self.instance,
        }
        request = JoinGroup.model_validate({**fields, **changes})
        self.take((await self.ask(AssignmentResponse, request)).assignment)

    def take(self, assignment: MemberAssignment) -> None:
        """Hear what it owns."""
        self.member, self.generation = assignment.member, assignment.generation
        self.keeps = {
            (one.stream, number): since for one in assignment.streams for number, since in one.keeps
        }
        self.gives_up = {
            (one.stream, number): since for one in assignment.streams for number, since in one.gives_up
        }

    def beat(self) -> MemberBeat:
        return MemberBeat(
            group=self.group, member=self.member, generation=self.generation, instance=self.instance
        )

    async def heartbeat(self, wait_ms: int = 0) -> HeartbeatResponse:
        """Say that it lives, and hear what is new."""
        request = SendHeartbeat(id=self.link.next_id(), beats=[self.beat()], max_wait_ms=wait_ms)
        response = await self.ask(HeartbeatResponse, request)
        for assignment in response.assignments:
            self.take(assignment)
        return response

    async def release(self, claims: Mapping[tuple[str, int], int] | None = None) -> None:
        """Give up these claims, or all that it is asked for."""
        by_stream: dict[str, list[list[int]]] = {}
        for (stream, number), since in (self.gives_up if claims is None else claims).items():
            by_stream.setdefault(stream, []).append([number, since])
        named = [StreamClaims(stream=stream, partitions=pairs) for stream, pairs in by_stream.items()]
        request = ReleasePartitions(
            id=self.link.next_id(),
            group=self.group,
            member=self.member,
            claims=named,
            instance=self.instance,
        )
        self.take((await self.ask(AssignmentResponse, request)).assignment)

    async def leave(self) -> None:
        request = LeaveGroup(id=self.link.next_id(), group=self.group, member=self.member)
        await self.ask(LeftResponse, request)

    async def commit(
        self,
        offset: int,
        stream: str = "orders",
        partition: int = 0,
        incarnation: str | None = None,
        metadata: str | None = None,
        **changes: object,
    ) -> bool:
        """Commit one cursor; return whether a later commit had superseded it."""
        self.commits += 1
        cursor = PartitionCursor(
            stream=stream, partition=partition, offset=offset, incarnation=incarnation, metadata=metadata
        )
        fields = {
            "id": self.link.next_id(),
            "group": self.group,
            "member": self.member,
            "generation": self.generation,
            "number": self.commits,
            "cursors": [cursor],
            "instance": self.instance,
        }
        request = CommitCursors.model_validate({**fields, **changes})
        return (await self.ask(CommittedResponse, request)).superseded

    async def cursors(self, stream: str = "orders", count: int = 1) -> dict[int, int]:
        """The group's cursors, by partition."""
        partitions = [StreamNumbers(stream=stream, numbers=list(range(count)))]
        request = FetchCursors(id=self.link.next_id(), group=self.group, partitions=partitions)
        response = await self.ask(CursorsResponse, request)
        return {cursor.partition: cursor.offset for cursor in response.cursors}


async def coordinator(address: tuple[str, int], group: str) -> tuple[str, int]:
    """Where the group's coordinator is, asked of the node at ``address``."""
    link = await SocketLink.open(*address, WAIT_SECONDS, SocketAccess())
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    found = (await link.ask(FindCoordinator(id=link.next_id(), group=group))).response
                except UnavailableError:
                    await pause()
                    continue
                assert isinstance(found, CoordinatorResponse)
                return found.host, found.port
    finally:
        link.close()


@asynccontextmanager
async def members(
    address: tuple[str, int], group: str, count: int = 1, streams: tuple[str, ...] = ("orders",)
) -> AsyncIterator[list[RawMember]]:
    """Members that have not joined yet, each on a connection to the group's coordinator of its own."""
    where = await coordinator(address, group)
    links = [await SocketLink.open(*where, WAIT_SECONDS, SocketAccess()) for _ in range(count)]
    try:
        yield [RawMember(link, group, list(streams)) for link in links]
    finally:
        for link in links:
            link.close()


async def joined(member: RawMember) -> None:
    """Join, again while the coordinator reads its groups."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await member.join()
            except UnavailableError:
                member.joins -= 1
                await pause()
            else:
                return
