"""Consumer groups for their operators: members, lag, and cursors."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Final, TypedDict, TypeVar, Unpack

from envelope.errors import UnavailableError, UnknownStream
from envelope.group_errors import UnknownGroup
from jetstream.client.admin.group_lag import (
    CursorMove,
    CursorReset,
    GroupLag,
    PartitionName,
    Target,
    cursors_of,
    lag_of,
    streams_of,
)
from jetstream.client.admin.stream_ranges import PATIENCE_S_DEFAULT, range_of
from jetstream.client.nodes.node_links import NodeLinks
from jetstream.client.nodes.request_api import NatsRequests
from jetstream.client.publish.messages import refuse_unknown
from metadata.api.group_responses import (
    DeleteGroupResponse,
    GroupInfo,
    GroupSummary,
    ListGroupsResponse,
    ResetGroupResponse,
)
from metadata.api.responses import PartitionedStreamInfo, StreamInfo

_Name = TypeVar("_Name")
_Found = TypeVar("_Found")

_READINGS_MAX: Final = 5
"""Of a group that comes in pages and has changed in between."""
_ASKED_AT_ONCE: Final = 16
RESET_AT_ONCE: Final = 2_000
"""Cursors that are set all or none; so many fit one NATS message, whatever the streams are called."""


class ResetOptions(TypedDict, total=False):
    """Which cursors are set, and what if the group has members."""

    by: int
    """In the place of a target: so many offsets forward, or back; at most to where the log begins or ends."""
    streams: Sequence[str]
    """Only these; otherwise all that the group reads or has read, as far as they exist."""
    partitions: Sequence[int]
    """Only these of the one stream that is named."""
    force: bool
    """Put out the members that there are first; what they have not committed is read again."""
    dry_run: bool
    """Only return what would be moved."""


class Groups:
    """The consumer groups of a cluster. Every method raises what `NatsRequests.ask` raises."""

    def __init__(self, requests: NatsRequests, links: NodeLinks) -> None:
        """Ask by ``requests``; where a moment is in a log the nodes are asked by their ``links``."""
        self._requests = requests
        self._links = links

    async def info(self, group: str) -> GroupInfo:
        """Return a group with all its members and cursors, as durable as they are when this is called.

        Raises:
            UnknownGroup: there is none of that name.
            UnavailableError: it changes faster than it comes; it must have thousands of members and cursors.
        """
        for _ in range(_READINGS_MAX):
            pages = await self._pages(group)
            if len({(page.generation, page.total) for page in pages}) == 1:
                members = list(chain.from_iterable(page.members for page in pages))
                cursors = list(chain.from_iterable(page.cursors for page in pages))
                return pages[0].model_copy(update={"members": members, "cursors": cursors})
        raise UnavailableError(f"group {group!r} changes faster than it can be read")

    async def _pages(self, group: str) -> Sequence[GroupInfo]:
        pages: list[GroupInfo] = []
        had = 0
        while True:
            page = await self._requests.ask("group.info", {"group": group, "offset": had}, GroupInfo)
            pages.append(page)
            told = len(page.members) + len(page.cursors)
            had += told
            if not told or had >= page.total:
                return pages

    async def lag(self, group: str) -> GroupLag:
        """Return how far a group is behind in each partition of the streams that it reads or has read.

        Where it has no cursor it is behind by all that is in the log. Of a compacted stream offsets are
        counted, not the records that are left.

        Raises:
            UnknownGroup: there is none of that name.
        """
        info = await self.info(group)
        return lag_of(info, await self._partitions(streams_of(info)))

    async def reset(
        self, group: str, to: Target | None = None, **options: Unpack[ResetOptions]
    ) -> tuple[CursorMove, ...]:
        """Set where a group reads on; durable on return, and returns what was moved.

        A group that does not exist yet can be given its first cursors. Up to 2,000 cursors are set all or
        none; more of them in several turns.

        Args:
            group: should have no members; it may be a new one.
            to: ``"earliest"``, ``"latest"`` (the high watermark now), an offset of every partition, an aware
                datetime (the first record that is not before it), or a timedelta below 0: so long ago.
            options: see `ResetOptions`; ``by`` in the place of ``to``.

        Raises:
            TypeError: an option that does not exist.
            GroupInUse: the group has members, and ``force`` is not set.
            UnknownGroup: there is no such group, and no stream was named.
            UnknownStream: a stream, or a partition of it, does not exist.
            OffsetOutOfRange: the offset is not in a partition; nothing is moved.
            RequestError: it says what cannot be, or there is no cursor to be moved ``by``; nothing is moved.
        """
        refuse_unknown(options, ResetOptions.__optional_keys__)
        streams = options.get("streams")
        wanted = CursorReset(to, options.get("by"), streams, options.get("partitions", ())).validated()
        info = await self._known(group, must_exist=streams is None)
        cursors = {} if info is None else cursors_of(info)
        found = await self._partitions(wanted.streams_of(info))
        names = wanted.selected(found, cursors)
        since = wanted.range_start(datetime.now(UTC))

        async def moved(name: PartitionName) -> CursorMove:
            log = await range_of(self._links, found[name].config.name, since, PATIENCE_S_DEFAULT)
            return wanted.put(name, cursors.get(name), log)

        moves = tuple(await _of_each(names, moved))
        if not options.get("dry_run", False):
            await self.move(group, moves, force=options.get("force", False))
        return moves

    async def move(self, group: str, moves: Sequence[CursorMove], *, force: bool = False) -> None:
        """Set cursors as a `reset` with ``dry_run`` has returned them; everything else as with `reset`."""
        for first in range(0, len(moves), RESET_AT_ONCE):
            cursors = [
                {
                    "stream": move.stream,
                    "partition": move.partition,
                    "offset": move.after,
                    "incarnation": move.incarnation,
                }
                for move in moves[first : first + RESET_AT_ONCE]
            ]
            fields: dict[str, object] = {"group": group, "cursors": cursors, "force": force}
            await self._requests.ask("group.reset", fields, ResetGroupResponse)

    async def delete(self, group: str, *, force: bool = False) -> None:
        """Delete a group with all its cursors; durable on return. ``force``: put out members that there are.

        Raises:
            GroupInUse: the group has members, and ``force`` is not set.
            UnknownGroup: there is none of that name.
        """
        fields: dict[str, object] = {"group": group, "force": force}
        await self._requests.ask("group.delete", fields, DeleteGroupResponse)

    async def list(self, prefix: str | None = None) -> "list[GroupSummary]":
        """Return all groups in the order of their names, or those whose name begins with ``prefix``.

        They come in pages by number: of more than 256, one may be missing or come twice if others come or go
        at this moment.

        Raises:
            UnavailableError: some of the nodes that have groups do not answer; the list is never cut short.
        """
        fields: dict[str, object] = {} if prefix is None else {"prefix": prefix}
        return await self._requests.paged("group.list", fields, ListGroupsResponse, lambda page: page.groups)

    # --- what a reset needs ------------------------------------------------------------------------

    async def _known(self, group: str, *, must_exist: bool) -> GroupInfo | None:
        try:
            return await self.info(group)
        except UnknownGroup:
            if must_exist:
                raise
            return None

    # --- partitions --------------------------------------------------------------------------------

    async def _partitions(self, streams: Iterable[str]) -> dict[PartitionName, StreamInfo]:
        """Return what there is of these streams, partition by partition."""
        found = await _of_each(list(streams), self._partitions_of)
        return {name: info for partitions in found for name, info in partitions.items()}

    async def _partitions_of(self, stream: str) -> dict[PartitionName, StreamInfo]:
        """Return what there is of one stream; of one that is partitioned, each that is there."""
        info = await self._info_of(stream)
        if isinstance(info, StreamInfo):
            return {PartitionName(stream, 0): info}
        if info is None:
            return {}
        names = [partition.name for partition in info.partitions]
        parts = await _of_each(names, self._info_of)
        return {
            PartitionName(stream, part.config.partition): part
            for part in parts
            if isinstance(part, StreamInfo) and part.config.partition is not None
        }

    async def _info_of(self, stream: str) -> StreamInfo | PartitionedStreamInfo | None:
        try:
            return await self._requests.stream_info(stream)
        except UnknownStream:
            return None


async def _of_each(names: Sequence[_Name], ask: Callable[[_Name], Awaitable[_Found]]) -> list[_Found]:
    """Ask for each, some at once; return the answers in the same order."""
    found: list[_Found] = []
    for first in range(0, len(names), _ASKED_AT_ONCE):
        found += await asyncio.gather(*(ask(name) for name in names[first : first + _ASKED_AT_ONCE]))
    return found
