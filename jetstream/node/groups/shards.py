"""The shards of consumer groups that this node coordinates, and what operators ask of the groups in them.

`GroupStreams` is what consumer groups need to know of streams: their partitions and incarnations.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import NamedTuple

from consumer_groups.assignment.partitions import GroupName, Holder, StreamPartitions
from consumer_groups.coordinator.events import ConnectionId, NewCursor
from consumer_groups.shard.events import (
    Answer,
    DeleteGroup,
    DescribeGroup,
    GroupDescription,
    GroupRequest,
    GroupsFound,
    RequestFailed,
    ResetCursors,
)
from consumer_groups.shard.records import GroupCursorRecord
from envelope.errors import InvalidName, NotLeader, UnavailableError
from envelope.internal_streams import group_shard, is_group_shard
from envelope.subjects import validated_stream_name
from envelope.types import StreamName
from jetstream.node.groups.shard import GroupShard, ShardServices
from jetstream.node.replicas.context import NodeServices
from jetstream.node.replicas.led_stream import LeadingStream
from jetstream.node.replicas.replica import StreamReplica
from metadata.api.responses import CoordinatorInfo
from metadata.catalog.catalog import Catalog
from metadata.catalog.events import Events, ReplicasReassigned, StreamCreated, StreamDeleted, StreamUpdated
from metadata.catalog.tables import Stream
from metadata.stream_config import partition_name


class GroupStreams:
    """As the catalogue says now."""

    def __init__(self, catalog: Catalog) -> None:
        """Look into ``catalog``."""
        self._catalog = catalog

    def partitions(self, name: StreamName) -> StreamPartitions | None:
        """Return the partitions of a stream; one that is not partitioned has one. None: there is none."""
        rows = self._rows(name)
        if not rows:
            return None
        return StreamPartitions(name, len(rows), tuple(self._holders(row) for row in rows))

    def life(self, name: StreamName) -> str | None:
        """Return which life of its name a stream is, whatever partitions are added; None: there is none."""
        rows = self._rows(name)
        return rows[0].incarnation if rows else None

    def is_partitioned(self, name: StreamName) -> bool:
        """Return whether partition 3 of ``name`` is the stream ``name/3``."""
        return self._catalog.partitions_of(name) > 0

    def _rows(self, name: StreamName) -> tuple[Stream, ...]:
        count = self._catalog.partitions_of(name)
        if count:
            return self._catalog.partition_rows(name)[:count]
        row = self._catalog.stream(name)
        return () if row is None else (row,)

    def _holders(self, row: Stream) -> tuple[Holder, ...]:
        nodes = (self._catalog.node(node_id) for node_id in row.holders)
        return tuple(Holder(node.node_id, node.rack) for node in nodes if node is not None)


def names_in(events: Events) -> Iterator[StreamName]:
    """Yield the streams whose partitions, or the places of these, may be others after ``events``."""
    for event in events:
        if isinstance(event, StreamCreated | StreamDeleted | StreamUpdated | ReplicasReassigned):
            yield event.stream.name
            if event.stream.config.partition_of is not None:
                yield StreamName(event.stream.config.partition_of)


class Census(NamedTuple):
    """How many of each this node coordinates."""

    groups: int
    members: int
    cursors: int


class GroupPosition(NamedTuple):
    """Where a group stands in a stream, or in one partition of it."""

    group: GroupName
    stream: StreamName
    """As it is called itself: ``orders/2`` is a partition."""
    cursor: GroupCursorRecord | None
    """None: a member owns it, and has committed nothing."""


class GroupService:
    """Used on the loop's thread; a `CatalogListener`.

    Attributes:
        streams: what there is to subscribe to.
    """

    def __init__(
        self,
        catalog: Catalog,
        find: Callable[[str], StreamReplica | None],
        readers: Executor,
        services: NodeServices,
    ) -> None:
        """Find a shard's replica by ``find``, which raises as `Streams.stream`; read it on ``readers``."""
        self.streams = GroupStreams(catalog)
        self._catalog = catalog
        self._find = find
        self._tasks: asyncio.TaskGroup = services.tasks
        self._services = ShardServices(
            services.clock, services.cluster.timers, readers, self.streams.partitions, self.streams.life
        )
        self._shards: dict[StreamName, GroupShard] = {}

    @property
    def shards(self) -> tuple[GroupShard, ...]:
        """Those that this node coordinates now, or is about to."""
        return tuple(shard for shard in self._shards.values() if not shard.has_ended)

    @property
    def census(self) -> Census:
        """Counts over the shards that are read."""
        machines = [shard.machine for shard in self.shards if shard.machine is not None]
        return Census(
            groups=sum(machine.groups for machine in machines),
            members=sum(machine.members for machine in machines),
            cursors=sum(machine.cursors for machine in machines),
        )

    def positions(self) -> Iterator[GroupPosition]:
        """Yield where all groups that are read here stand; they may change between two of them."""
        for shard in self.shards:
            if shard.machine is not None:
                for group, (stream, number), cursor in shard.machine.table.positions():
                    is_part = self.streams.is_partitioned(stream)
                    yield GroupPosition(group, partition_name(stream, number) if is_part else stream, cursor)

    def reign_begun(self, leading: LeadingStream) -> None:
        """Handle the begin of this node's reign over a stream."""
        if is_group_shard(leading.context.name):
            shard = self._shards[leading.context.name] = GroupShard(leading, self._services)
            self._tasks.create_task(shard.load())

    def closed(self, connection: ConnectionId) -> None:
        """Forget what waits for a connection that is gone."""
        for shard in self.shards:
            shard.closed(connection)

    # --- what the catalogue says (CatalogListener) -------------------------------------------------

    def applied(self, events: Events) -> None:
        """Handle the events of an applied command."""
        names = frozenset(names_in(events))
        for shard in self.shards if names else ():
            shard.streams_changed(names)

    def restored(self) -> None:
        """Handle a restored catalogue: everything may have changed."""
        for shard in self.shards:
            shard.streams_changed(None)

    # --- which shard ---------------------------------------------------------------------------------

    def shard_of(self, group: str) -> GroupShard:
        """Return the shard of a group.

        Raises:
            InvalidName: no group can be called that.
            NotLeader: another node coordinates it, ``leader`` if somebody does.
        """
        return self._led(shard_name(group))

    def _led(self, name: StreamName) -> GroupShard:
        shard = self._shards.get(name)
        if shard is not None and not shard.has_ended:
            return shard
        row = self._catalog.stream(name)
        detail = {} if row is None or row.leader is None else {"leader": row.leader}
        raise NotLeader("this node does not coordinate the group", **detail)

    async def confirm_leadership(self, shard: GroupShard) -> None:
        """Return once it is known that this node led the shard when this was called.

        Raises:
            NotLeader, StreamOffline: it does not, or nobody can say.
        """
        replica = self._find(shard.stream)
        if replica is None:
            raise NotLeader("this node does not coordinate the group")
        await replica.confirm_leadership()

    # --- what operators ask --------------------------------------------------------------------------

    async def describe(self, group: str) -> GroupDescription:
        """Return a group and its cursors, as durable as they are when this is called, or newer.

        Raises:
            UnknownGroup: there is none of that name.
            NotLeader: another node coordinates it.
            UnavailableError: it is being read, or nobody knows whether this node still leads.
        """
        shard = self.shard_of(group)
        await self.confirm_leadership(shard)
        answer = await _asked(shard, GroupName(group), DescribeGroup())
        assert isinstance(answer, GroupDescription), answer
        return answer

    async def groups(self, name: StreamName, prefix: str) -> GroupsFound:
        """Return the groups in one shard whose names begin with ``prefix``; raises as `describe`."""
        shard = self._led(name)
        await self.confirm_leadership(shard)
        future = asyncio.get_running_loop().create_future()
        shard.names(prefix, lambda answer: _resolve(future, answer))
        answer = await future
        assert isinstance(answer, GroupsFound), answer
        return answer

    async def reset(self, group: str, cursors: tuple[NewCursor, ...], *, force: bool) -> None:
        """Set cursors of a group, forward or back; durable on return.

        Raises:
            GroupInUse: it has members, and ``force``, which puts them out, is not set.
            NotEnoughReplicas: nothing was stored.
            JetstreamError: as `describe`, but for `UnknownGroup`.
        """
        await self._change(group, ResetCursors(cursors, force))

    async def delete(self, group: str, *, force: bool) -> None:
        """Delete a group and its cursors; durable on return; raises as `describe` and `reset`."""
        await self._change(group, DeleteGroup(force))

    async def _change(self, group: str, request: ResetCursors | DeleteGroup) -> None:
        shard = self.shard_of(group)
        shard.require_writable()
        await _asked(shard, GroupName(group), request)


def shard_name(group: str) -> StreamName:
    """Return the shard of a group.

    Raises:
        InvalidName: no group can be called that.
    """
    try:
        return group_shard(validated_stream_name(group))
    except InvalidName as error:
        raise InvalidName(f"the group's name: {error.description}") from None


def coordinator_of(group: str, catalog: Catalog) -> CoordinatorInfo:
    """Return where a group's coordinator is.

    Raises:
        InvalidName: no group can be called that.
        UnavailableError: nobody leads its shard now, or it is not known here yet.
    """
    name = shard_name(group)
    row = catalog.stream(name)
    node = None if row is None or row.leader is None else catalog.node(row.leader)
    if node is None:
        raise UnavailableError(f"group {group!r} has no coordinator now: nobody leads {name}")
    return CoordinatorInfo(group=group, shard=name, node=node.node_id, host=node.host, port=node.port)


async def _asked(shard: GroupShard, group: GroupName, request: GroupRequest) -> Answer:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    shard.ask(group, request, lambda answer: _resolve(future, answer))
    return await future


def _resolve(future: "asyncio.Future[Answer]", answer: Answer) -> None:
    if future.done():
        return  # who asked has gone
    if isinstance(answer, RequestFailed):
        future.set_exception(answer.error)
    else:
        future.set_result(answer)
