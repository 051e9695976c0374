"""The laws of a group's cursors, checked from outside: in the log, in what is acked, in what is told.

A commit says in its metadata whose it is, which number it has, and whether it is a reset.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from consumer_groups.assignment.partitions import MemberId, Partition
from consumer_groups.coordinator.events import StoreCursors
from consumer_groups.shard.records import GroupCursorRecord, read_group_key
from tests.simulation.groups.checks import Checks
from tests.simulation.groups.shard_log import Entry
from tests.simulation.groups.streams import Streams
from tests.simulation.violation import Violation

OPERATOR: Final = MemberId("operator")


class Origin(NamedTuple):
    """Whose a cursor is."""

    member_id: MemberId
    request: int
    is_reset: bool

    def text(self) -> str:
        """Return the metadata of a commit."""
        return f"{self.member_id}|{self.request}|{self.is_reset:d}"

    @staticmethod
    def read(cursor: GroupCursorRecord) -> "Origin":
        """Return what `text` said."""
        member_id, request, is_reset = str(cursor.metadata).split("|")
        return Origin(MemberId(member_id), int(request), bool(int(is_reset)))


Floors = tuple[int, Mapping[Partition, int]]
"""How often the group was deleted, and of each partition the newest entry that somebody was answered for."""


class CursorChecks:
    """Those of one group."""

    def __init__(self, checks: Checks, streams: Streams) -> None:
        self._checks, self._streams = checks, streams
        self._cursors: dict[Partition, GroupCursorRecord] = {}
        self._stored: dict[tuple[MemberId, int, Partition], int] = {}
        """The first entry that has this of a commit: it may be sent again, and written again."""
        self._requests: dict[MemberId, int] = {}
        self._in_order: dict[tuple[int, MemberId], int] = {}
        self._acked: dict[Partition, int] = {}
        self._delivered: dict[tuple[str | None, Partition], int] = {}
        self._deletions = 0
        self._begun_at = -1

    # --- what is read ------------------------------------------------------------------------------------

    def delivered_end(self, partition: Partition) -> int:
        """Return up to where every record was delivered, of the present life."""
        return self._delivered.get((self._streams.life(partition.stream), partition), 0)

    def delivered(self, life: str | None, partition: Partition, start: int, end: int) -> None:
        """Records from ``start`` up to ``end`` were delivered to a member."""
        reached = self._delivered.get((life, partition), 0)
        if start > reached:
            raise Violation(f"records {reached} to {start} of {partition} are left out")
        self._delivered[life, partition] = max(reached, end)

    # --- what becomes durable ----------------------------------------------------------------------------

    def made_durable(self, cursor: GroupCursorRecord, entry: Entry) -> None:
        """Check a cursor against the one before, and against the group as it is durable."""
        origin, partition = Origin.read(cursor), cursor.partition
        before = self._cursors.get(partition)
        is_same = before is not None and before.incarnation == cursor.incarnation
        if before is not None and is_same and not origin.is_reset and cursor.offset < before.offset:
            raise Violation(f"{partition} goes back from {before.offset} to {cursor.offset}")
        delivered = self._delivered.get((cursor.incarnation, partition), 0)
        if cursor.offset > delivered:
            raise Violation(f"{cursor} where {delivered} were delivered")
        self._cursors[partition] = cursor
        self._check_owner(cursor, origin)
        if origin.member_id == OPERATOR:
            return
        key = (entry.reign, origin.member_id)
        if origin.request < self._in_order.get(key, origin.request):
            raise Violation(f"{origin} after request {self._in_order[key]}")
        self._in_order[key] = origin.request
        self._stored.setdefault((origin.member_id, origin.request, partition), entry.at)
        self._requests[origin.member_id] = max(origin.request, self._requests.get(origin.member_id, 0))

    def deleted_group(self, entry: Entry) -> None:
        """Nothing may be left of what was committed."""
        keys = (read_group_key(record.key) for record in entry.records if record.value is None)
        left = self._cursors.keys() - {key.partition for key in keys if key is not None}
        if left:
            raise Violation(f"of a group that is deleted {len(left)} cursors are left")
        self._cursors.clear()
        self._acked.clear()
        self._deletions += 1
        self._begun_at = max(self._stored.values(), default=-1)

    def _check_owner(self, cursor: GroupCursorRecord, origin: Origin) -> None:
        state = self._checks.durable
        if origin.member_id == OPERATOR:
            if state is not None and state.members:
                raise Violation(f"{cursor} is set while there are members: {sorted(state.members)}")
            return
        grant = None if state is None else state.grants.get(cursor.partition)
        if grant is None or grant.member_id != origin.member_id:
            raise Violation(f"{cursor} is stored, {cursor.partition} is owned by {grant}")
        if cursor.generation < grant.generation:
            raise Violation(f"{cursor} is stored, {cursor.partition} is owned since {grant.generation}")

    # --- what is said ------------------------------------------------------------------------------------

    def acked(self, commit: StoreCursors) -> None:
        """Check that a commit that is answered is in the log, all of it."""
        for partition, _ in commit.cursors:
            at = self._stored.get((commit.member_id, commit.request, partition))
            if at is None:
                raise Violation(f"{commit} is answered, and not stored for {partition}")
            if at > self._begun_at:
                self._acked[partition] = max(at, self._acked.get(partition, 0))

    def superseded(self, commit: StoreCursors) -> None:
        """Check that a later commit of the same member is in the log."""
        if commit.request >= self._requests.get(commit.member_id, 0):
            raise Violation(f"{commit} is answered as superseded, by nothing that is stored")

    def floors(self, partitions: Iterable[Partition]) -> Floors:
        """Return how new at least what is told of these has to be from now on."""
        return self._deletions, {each: self._acked[each] for each in partitions if each in self._acked}

    def fetched(self, floors: Floors, cursors: Iterable[GroupCursorRecord]) -> None:
        """Check what is told by who led when the floors were taken."""
        deletions, newest = floors
        told = {cursor.partition: cursor.committed_at for cursor in cursors}
        for partition, at in newest.items():
            if told.get(partition, -1) < at and deletions == self._deletions:
                raise Violation(f"{partition} is told as of {told.get(partition)}, {at} was acked before")
