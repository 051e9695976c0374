"""The cursors that the members of a group commit: which come too late, and which would go back.

Commits are written one behind the other, without waiting. That is right as long as cursors only grow:
whichever of the writes under way are refused, what is left of them grows too. Behind a commit that lets a
cursor go back (a reset, or a stream that was made again) nothing is written before it is settled: otherwise
what comes after it could be stored without it. Whether a stream was made again is seen by what is durable.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from consumer_groups.assignment.partitions import GroupName, MemberId, Partition
from consumer_groups.coordinator.events import NewCursor, StoreCursors
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import QuestionId
from consumer_groups.shard.group_table import GroupTable
from envelope.errors import CorruptDataError, InvalidCursor, JetstreamError, LimitReached
from envelope.group_errors import CursorBehind
from envelope.limits import GROUP_CURSORS_MAX, SHARD_CURSORS_MAX


@dataclass(slots=True)
class PendingCommit:
    """A commit whose write is under way."""

    member_id: MemberId
    request: int
    cursors: tuple[NewCursor, ...]
    superseded: list[QuestionId | None] = field(default_factory=list)
    """Commits that came later and are older: they are answered with this one."""


class PendingCommits:
    """Those of one group."""

    def __init__(self, group: GroupName, table: GroupTable) -> None:
        self._group, self._table = group, table
        self._newest: dict[Partition, tuple[CursorPosition, PendingCommit]] = {}
        """The last that is under way for each partition."""
        self._under_way: dict[MemberId, PendingCommit] = {}
        """The last of each member."""
        self._durable: dict[MemberId, int] = {}
        """The newest request of each member that is durable."""

    # --- what is asked ---------------------------------------------------------------------------------

    def later_one(self, commit: StoreCursors) -> PendingCommit | None:
        """Return the commit under way by which this one is superseded, if there is one."""
        last = self._under_way.get(commit.member_id)
        return last if last is not None and commit.request < last.request else None

    def is_over(self, commit: StoreCursors) -> bool:
        """Return whether a later commit of the same member is durable."""
        return commit.request < self._durable.get(commit.member_id, commit.request)

    def goes_back(self, cursors: Iterable[NewCursor]) -> bool:
        """Return whether one of these is below the newest one of its partition, durable or under way."""
        if not self._table.is_readable(self._group):
            return True  # perhaps
        return any(
            known is not None and place.offset < known.offset
            for known, place in ((self._newest_of(partition), place) for partition, place in cursors)
        )

    def refusal(self, cursors: Iterable[NewCursor]) -> JetstreamError | None:
        """Return why one of these may not be stored unless it is a reset, if so."""
        for partition, place in cursors:
            try:
                known = self._newest_of(partition)
            except CorruptDataError as error:
                return error
            if known is not None and _is_behind(place, known):
                text = f"{partition} of group {self._group!r} is at {known.offset}, {place.offset} is behind"
                return CursorBehind(text, partition=str(partition), offset=known.offset)
        return None

    def _newest_of(self, partition: Partition) -> CursorPosition | None:
        under_way = self._newest.get(partition)
        if under_way is not None:
            return under_way[0]
        known = self._table.cursor(self._group, partition)
        return None if known is None else known.place

    def limit_refusal(self, cursors: Iterable[NewCursor]) -> JetstreamError | None:
        """Return why these are too many, if they are, or are not distinct."""
        partitions = [cursor.partition for cursor in cursors]
        distinct = set(partitions)
        if not partitions or len(distinct) < len(partitions):
            return InvalidCursor("a commit names partitions, each of them once")
        known = self._table.cursors_of(self._group)
        may_be_many = len(known) + len(distinct) + len(self._newest) > GROUP_CURSORS_MAX
        if may_be_many and len(distinct.union(known, self._newest)) > GROUP_CURSORS_MAX:
            return LimitReached(f"group {self._group!r} has {GROUP_CURSORS_MAX} cursors at most")
        if self._table.cursors >= SHARD_CURSORS_MAX and not distinct <= known.keys():
            return LimitReached(f"the groups of this shard have {SHARD_CURSORS_MAX} cursors")
        return None

    # --- what becomes of it ----------------------------------------------------------------------------

    def begin(self, commit: PendingCommit) -> None:
        """Take in that a commit is being written."""
        self._under_way[commit.member_id] = commit
        for partition, place in commit.cursors:
            self._newest[partition] = (place, commit)

    def end(self, commit: PendingCommit, *, is_durable: bool) -> None:
        """Take in what became of the commit that is under way for longest."""
        for partition, _ in commit.cursors:
            if self._newest[partition][1] is commit:
                del self._newest[partition]
        if self._under_way[commit.member_id] is commit:
            del self._under_way[commit.member_id]
        if is_durable:
            before = self._durable.get(commit.member_id, commit.request)
            self._durable[commit.member_id] = max(before, commit.request)

    def keep(self, members: AbstractSet[MemberId]) -> None:
        """Forget the requests of all others."""
        for member_id in self._durable.keys() - members:
            del self._durable[member_id]


def _is_behind(place: CursorPosition, known: CursorPosition) -> bool:
    """Return whether one place is behind another in the same stream, as far as that can be known."""
    if None not in (place.incarnation, known.incarnation) and place.incarnation != known.incarnation:
        return False
    return place.offset < known.offset
