"""The requests about consumer groups: answered by who coordinates them, or by asking all who do."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Final, Protocol, assert_never

from consumer_groups.assignment.partitions import Claim, MemberId, Partition
from consumer_groups.coordinator.events import NewCursor
from consumer_groups.coordinator.group_state import MemberState, Share
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import GroupDescription, GroupsFound
from consumer_groups.shard.records import GroupCursorRecord as StoredCursor
from envelope.errors import JetstreamError, NotLeader, StreamOffline, UnavailableError
from envelope.group_errors import UnknownGroup
from envelope.internal_streams import GROUP_SHARD_STREAMS, group_shard
from envelope.types import NodeId, StreamName
from jetstream.node.groups.shards import coordinator_of
from jetstream.node.nats.link import NatsLink
from jetstream.node.runtime.clock import Clock
from metadata.api.group_responses import (
    DeleteGroupResponse,
    GroupCursor,
    GroupInfo,
    GroupMember,
    GroupSummary,
    ListGroupsResponse,
    OwnedPartitions,
    ResetGroupResponse,
)
from metadata.api.requests import (
    DeleteGroupRequest,
    FindCoordinatorRequest,
    GroupInfoRequest,
    GroupPlace,
    GroupRequest,
    ListGroupsRequest,
    ResetGroupRequest,
)
from metadata.api.response_base import fitting_page
from metadata.api.responses import CoordinatorInfo, utc
from metadata.api.routing import node_subject
from metadata.api.wire import decode_response, encode_request
from metadata.catalog.tables import Stream
from metadata.limits import LIST_PAGE_MAX
from metadata.node.catalogue.group import MetadataQuorum

_NS_PER_MS: Final = 1_000_000
_SHARD_SECONDS: Final = 0.8
"""How long another node may take to list its groups: less than is waited for the whole list."""
_LOADING_NS: Final = 3_000_000_000
"""How long a change waits for a coordinator that is still reading its groups."""
_LOOK_SECONDS: Final = 0.05


class Coordination(Protocol):
    """The groups of the shards that this node leads; of another `NotLeader` is raised.

    While the groups of a shard are being read, everything raises `UnavailableError`, and nothing is done.
    """

    async def describe(self, group: str) -> GroupDescription:
        """Return a group; raises `UnknownGroup`."""

    async def groups(self, name: StreamName, prefix: str) -> GroupsFound:
        """Return the groups of a shard whose names begin with ``prefix``, ordered by name."""

    async def reset(self, group: str, cursors: tuple[NewCursor, ...], *, force: bool) -> None:
        """Set cursors; durable on return; raises `GroupInUse`."""

    async def delete(self, group: str, *, force: bool) -> None:
        """Delete a group; durable on return; raises `UnknownGroup`, `GroupInUse`."""


@dataclass(frozen=True, slots=True)
class NodeWays:
    """This node, and its way to the others."""

    node_id: NodeId
    prefix: str
    """Of the subjects of the request API."""
    link: NatsLink
    clock: Clock


class GroupOperations:
    """Answers them; used on the loop's thread."""

    def __init__(
        self,
        ways: NodeWays,
        metadata: MetadataQuorum,
        coordination: Coordination,
        make_shard: Callable[[StreamName], Awaitable[None]],
    ) -> None:
        """Prepare; ``make_shard`` makes the stream if there is none; NotLeader: another node can."""
        self._ways = ways
        self._metadata = metadata
        self._catalog = metadata.catalog
        self._coordination = coordination
        self._make_shard = make_shard

    async def answer(
        self, request: GroupRequest
    ) -> ListGroupsResponse | GroupInfo | ResetGroupResponse | DeleteGroupResponse | CoordinatorInfo:
        """Do what ``request`` asks; returns when it is durable.

        Raises:
            NotLeader: another node has to be asked; nothing was done.
            JetstreamError: the typed refusal, to be sent instead.
        """
        match request:
            case ListGroupsRequest():
                return await self._list(request)
            case GroupInfoRequest():
                return await self._info(request)
            case ResetGroupRequest():
                return await self._reset(request)
            case DeleteGroupRequest(group=group, force=force):
                await self._require_shard(group)
                await self._loaded(group)
                await self._coordination.delete(group, force=force)
                return DeleteGroupResponse(group=group)
            case FindCoordinatorRequest(group=group):
                await self._make_shard(group_shard(group))
                return coordinator_of(group, self._catalog)
            case _:
                assert_never(request)

    # --- one group ---------------------------------------------------------------------------------

    async def _info(self, request: GroupInfoRequest) -> GroupInfo:
        await self._require_shard(request.group)
        found = await self._coordination.describe(request.group)
        members = [found.state.members[member_id] for member_id in sorted(found.state.members)]
        shares = found.state.shares()
        details: list[MemberState | StoredCursor] = [*members, *found.cursors]
        page = fitting_page(_details(details[request.offset :], shares), request.limit)
        return GroupInfo(
            group=request.group,
            shard=group_shard(request.group),
            coordinator=self._ways.node_id,
            generation=found.state.generation,
            assignor=found.state.assignor,
            members=[each for each in page if isinstance(each, GroupMember)],
            cursors=[each for each in page if isinstance(each, GroupCursor)],
            total=len(details),
            offset=request.offset,
        )

    async def _reset(self, request: ResetGroupRequest) -> ResetGroupResponse:
        await self._make_shard(group_shard(request.group))
        await self._loaded(request.group)
        cursors = tuple(map(_new_cursor, request.cursors))
        await self._coordination.reset(request.group, cursors, force=request.force)
        return ResetGroupResponse(group=request.group, cursors=len(cursors))

    async def _require_shard(self, group: str) -> None:
        """Refuse a group that cannot exist, as the stream that would have it does not.

        Raises:
            UnknownGroup: there is no such group.
            NotLeader: this node does not know of the stream, and another one leads the metadata log.
        """
        shard = group_shard(group)
        if self._catalog.stream(shard) is None and (await self._metadata.read()).stream(shard) is None:
            raise UnknownGroup(f"there is no group {group!r}", group=group)

    async def _loaded(self, group: str) -> None:
        """Return once its coordinator has read its groups: before that nothing can be changed.

        Raises:
            NotLeader: another node coordinates it.
            UnavailableError: it takes too long.
        """
        clock = self._ways.clock
        gives_up_at = clock.monotonic() + _LOADING_NS
        while True:
            try:
                await self._coordination.describe(group)
            except UnavailableError as error:
                if isinstance(error, NotLeader) or clock.monotonic() > gives_up_at:
                    raise
            except JetstreamError:
                return  # it is none, or cannot be read: what is asked for may be just that it is deleted
            else:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    # --- all of them -------------------------------------------------------------------------------

    async def _list(self, request: ListGroupsRequest) -> ListGroupsResponse:
        prefix = request.prefix or ""
        if request.shard is not None:
            found = await self._groups_here(StreamName(request.shard), prefix)
            return _page(request, len(found), found[request.offset :])
        catalog = self._catalog
        if any(catalog.stream(name) is None for name in GROUP_SHARD_STREAMS):
            catalog = await self._metadata.read()  # one that this node has not heard of must not be left out
        rows = [row for row in map(catalog.stream, GROUP_SHARD_STREAMS) if row is not None]
        limit = request.offset + request.limit
        parts = await asyncio.gather(*(self._groups_of(row, prefix, limit) for row in rows))
        merged = merge(*(part.groups for part in parts), key=_name)
        return _page(request, sum(part.total for part in parts), islice(merged, request.offset, None))

    async def _groups_here(self, shard: StreamName, prefix: str) -> Sequence[GroupSummary]:
        if self._catalog.stream(shard) is None and (await self._metadata.read()).stream(shard) is None:
            return ()
        found = await self._coordination.groups(shard, prefix)
        return [
            GroupSummary(group=each.name, shard=shard, members=each.members, generation=each.generation)
            for each in found.groups
        ]

    async def _groups_of(self, row: Stream, prefix: str, limit: int) -> ListGroupsResponse:
        """Return the first ``limit`` groups of a shard, and how many there are.

        Raises:
            UnavailableError: its leader does not answer, or nobody leads it.
        """
        if row.leader is None:
            raise StreamOffline(f"nobody leads {row.name!r}, which has groups", stream=row.name)
        if row.leader == self._ways.node_id:
            found = await self._groups_here(row.name, prefix)
            return ListGroupsResponse(groups=list(found), total=len(found), offset=0)
        subject = node_subject(self._ways.prefix, row.leader, "group.list")
        groups: list[GroupSummary] = []
        while True:
            request = ListGroupsRequest(
                shard=row.name,
                prefix=prefix,
                offset=len(groups),
                limit=max(1, min(limit - len(groups), LIST_PAGE_MAX)),
            )
            answer = await self._ways.link.request(subject, encode_request(request), _SHARD_SECONDS)
            page = decode_response(ListGroupsResponse, answer)
            groups += page.groups
            if not page.groups or len(groups) >= min(limit, page.total):
                return ListGroupsResponse(groups=groups, total=page.total, offset=0)


def _page(request: ListGroupsRequest, total: int, groups: Iterable[GroupSummary]) -> ListGroupsResponse:
    return ListGroupsResponse(groups=fitting_page(groups, request.limit), total=total, offset=request.offset)


def _name(summary: GroupSummary) -> str:
    return summary.group


def _details(
    details: Iterable[MemberState | StoredCursor], shares: Mapping[MemberId, Share]
) -> Iterator[GroupMember | GroupCursor]:
    for each in details:
        yield (
            _told_member(each, shares[each.member_id])
            if isinstance(each, MemberState)
            else _told_cursor(each)
        )


def _told_member(member: MemberState, share: Share) -> GroupMember:
    return GroupMember(
        member=member.member_id,
        client=member.client,
        instance=member.instance_id,
        streams=sorted(member.streams),
        session_timeout_ms=member.session_timeout_ns // _NS_PER_MS,
        rebalance_timeout_ms=member.rebalance_timeout_ns // _NS_PER_MS,
        node=member.node,
        rack=member.rack,
        owned=_owned(share.keeps),
        gives_up=_owned(share.gives_up),
    )


def _owned(claims: Iterable[Claim]) -> list[OwnedPartitions]:
    by_stream: dict[StreamName, list[tuple[int, int]]] = defaultdict(list)
    for (stream, number), generation in claims:
        by_stream[stream].append((number, generation))
    return [OwnedPartitions(stream=stream, partitions=pairs) for stream, pairs in sorted(by_stream.items())]


def _told_cursor(cursor: StoredCursor) -> GroupCursor:
    return GroupCursor(
        stream=cursor.partition.stream,
        partition=cursor.partition.number,
        offset=cursor.offset,
        incarnation=cursor.incarnation,
        metadata=cursor.metadata,
        committed_at=utc(cursor.committed_at),
    )


def _new_cursor(place: GroupPlace) -> NewCursor:
    partition = Partition(StreamName(place.stream), place.partition)
    return NewCursor(partition, CursorPosition(place.offset, place.incarnation, place.metadata))
