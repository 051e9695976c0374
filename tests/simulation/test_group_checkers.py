"""The checkers of groups find what they are for, and accept what is right."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from consumer_groups.assignment.partitions import Claim, Generation, MemberId, Partition
from consumer_groups.coordinator.events import (
    Assignment,
    ConnectionId,
    ExpiryCause,
    NewCursor,
    Release,
    StoreCursors,
)
from consumer_groups.coordinator.group_state import Grant, GroupState
from consumer_groups.cursors import CursorPosition
from consumer_groups.shard.events import WriteNumber
from consumer_groups.shard.group_json import to_json
from consumer_groups.shard.records import (
    GroupCursorRecord,
    GroupRecord,
    cursor_key,
    cursor_record,
    group_key,
)
from envelope.types import StreamName, TimestampUs
from tests.simulation.groups.checks import Checks
from tests.simulation.groups.cursor_checks import OPERATOR, CursorChecks, Origin
from tests.simulation.groups.shard_log import Entry, ShardLog, table_of
from tests.simulation.groups.streams import Streams
from tests.simulation.groups.swarm import draw
from tests.simulation.timeline import Timeline
from tests.simulation.violation import Violation
from tests.support.group_coordination import NAME, SESSION, Group

FIRST = Partition(StreamName("orders"), 0)
A, B = MemberId("a.1"), MemberId("b.1")
CONNECTION = ConnectionId("c")
LIFE = "life-0"


def checked() -> tuple[Checks, GroupState, Timeline]:
    """Return checkers that know a durable group of two members; ``a.1`` owns the first partition."""
    group = Group()
    group.join("a")
    group.join("b")
    timeline = Timeline()
    checks = Checks(timeline)
    checks.made_durable(group.state, 0)
    return checks, group.state, timeline


def moved(state: GroupState) -> GroupState:
    """Return the next generation, in which ``b.1`` owns the first partition."""
    generation = Generation(state.generation + 1)
    return replace(state, generation=generation, grants={**state.grants, FIRST: Grant(B, generation)})


# --- members and owners -----------------------------------------------------------------------------------


def test_a_generation_that_comes_again_is_found() -> None:
    checks, state, _ = checked()
    with pytest.raises(Violation, match="generation"):
        checks.made_durable(state, 0)
    checks.deleted_group()
    checks.made_durable(state, 0)


def test_a_partition_that_was_taken_is_found_and_one_that_was_given_up_may_move() -> None:
    checks, state, _ = checked()
    with pytest.raises(Violation, match="did not give it up"):
        checks.made_durable(moved(state), 0)
    checks, state, _ = checked()
    checks.given(Release(CONNECTION, A, (Claim(FIRST, state.grants[FIRST].generation),)))
    checks.made_durable(moved(state), 0)


def test_two_owners_since_one_generation_are_found() -> None:
    checks, state, _ = checked()
    same = replace(moved(state), grants={**state.grants, FIRST: Grant(B, state.grants[FIRST].generation)})
    with pytest.raises(Violation, match="two owners"):
        checks.made_durable(same, 0)


def test_what_is_said_and_not_durable_is_found() -> None:
    checks, state, _ = checked()
    share = state.shares()[A]
    checks.said(Assignment(A, state.generation, share.keeps, share.gives_up))
    with pytest.raises(Violation, match="not durable"):
        checks.said(Assignment(A, Generation(state.generation + 1), share.keeps, share.gives_up))
    with pytest.raises(Violation, match="where it owns"):
        checks.said(Assignment(A, state.generation, share.keeps))


def test_who_is_put_out_before_its_time_is_found() -> None:
    checks, state, timeline = checked()
    group = Group(state=state)
    group.leave(A)
    without = to_json(group.state)
    timeline.now = SESSION - 1
    checks.decided(without)
    for cause in (ExpiryCause.SILENT, ExpiryCause.HELD_ON):
        with pytest.raises(Violation, match="before its time"):
            checks.expired(A, cause)
    timeline.now = SESSION
    checks.decided(without)
    checks.expired(A, ExpiryCause.SILENT)
    checks.loaded()
    checks.decided(without)
    with pytest.raises(Violation, match="before its time"):
        checks.expired(A, ExpiryCause.SILENT)


# --- cursors ----------------------------------------------------------------------------------------------


class Stored:
    """Checkers of cursors, and a log that they look at; 10 records of the first partition were delivered."""

    def __init__(self) -> None:
        group, self.state, _ = checked()
        self.checks = CursorChecks(group, Streams(Random(1), replace(draw(Random(1)), named_lives=True)))
        self.checks.delivered(LIFE, FIRST, 0, 10)
        self.since = self.state.grants[FIRST].generation
        self.writes = 0

    def store(
        self, offset: int, request: int = 1, *, member: MemberId = A, generation: int | None = None
    ) -> None:
        self.put(offset, Origin(member, request, is_reset=False), generation)

    def put(self, offset: int, origin: Origin, generation: int | None = None) -> None:
        self.writes += 1
        heard = Generation(self.since if generation is None else generation)
        cursor = GroupCursorRecord(
            partition=FIRST,
            offset=offset,
            incarnation=LIFE,
            metadata=origin.text(),
            generation=heard,
            committed_at=TimestampUs(self.writes),
        )
        self.checks.made_durable(cursor, Entry(1, self.writes, 0, ()))


def commit(offset: int, request: int = 1) -> StoreCursors:
    return StoreCursors(
        CONNECTION, A, request, Generation(1), (NewCursor(FIRST, CursorPosition(offset, LIFE)),)
    )


def test_a_cursor_that_goes_back_is_found_unless_that_was_asked_for() -> None:
    stored = Stored()
    stored.store(7)
    stored.put(3, Origin(A, 2, is_reset=True))
    stored.store(5, 3)
    with pytest.raises(Violation, match="goes back from 5 to 4"):
        stored.store(4, 4)


def test_a_cursor_of_who_is_not_the_owner_is_found() -> None:
    with pytest.raises(Violation, match="is owned by"):
        Stored().store(1, member=B)
    with pytest.raises(Violation, match="is owned since"):
        Stored().store(1, generation=0)


def test_a_cursor_that_an_operator_sets_while_there_are_members_is_found() -> None:
    with pytest.raises(Violation, match="while there are members"):
        Stored().put(1, Origin(OPERATOR, 0, is_reset=True))


def test_a_commit_behind_a_later_one_of_its_member_is_found() -> None:
    stored = Stored()
    stored.store(1, 2)
    with pytest.raises(Violation, match="after request 2"):
        stored.store(2, 1)


def test_records_that_are_left_out_are_found() -> None:
    stored = Stored()
    stored.checks.delivered(LIFE, FIRST, 4, 12)
    assert stored.checks.delivered_end(FIRST) == 12
    with pytest.raises(Violation, match="12 to 13"):
        stored.checks.delivered(LIFE, FIRST, 13, 14)
    with pytest.raises(Violation, match="12 were delivered"):
        stored.store(13)


def test_an_answer_to_a_commit_that_is_not_in_the_log_is_found() -> None:
    stored = Stored()
    stored.store(1, 2)
    stored.checks.acked(commit(1, 2))
    stored.checks.superseded(commit(1, 1))
    with pytest.raises(Violation, match="not stored"):
        stored.checks.acked(commit(1, 1))
    with pytest.raises(Violation, match="superseded"):
        stored.checks.superseded(commit(1, 2))


def test_a_cursor_that_is_told_and_older_than_one_that_was_acked_before_is_found() -> None:
    stored = Stored()
    stored.store(1)
    before = stored.checks.floors([FIRST])
    stored.checks.acked(commit(1))
    floors = stored.checks.floors([FIRST])
    stored.checks.fetched(before, ())
    stored.checks.fetched(
        floors,
        [
            GroupCursorRecord(
                partition=FIRST,
                offset=1,
                incarnation=LIFE,
                metadata=None,
                generation=Generation(1),
                committed_at=TimestampUs(1),
            )
        ],
    )
    for old in (
        [],
        [
            GroupCursorRecord(
                partition=FIRST,
                offset=1,
                incarnation=LIFE,
                metadata=None,
                generation=Generation(1),
                committed_at=TimestampUs(0),
            )
        ],
    ):
        with pytest.raises(Violation, match="acked before"):
            stored.checks.fetched(floors, old)
    stored.checks.deleted_group(Entry(1, 2, 0, [GroupRecord(cursor_key(NAME, FIRST), None)]))
    stored.checks.fetched(floors, ())


def test_cursors_that_a_deletion_leaves_are_found() -> None:
    stored = Stored()
    stored.store(1)
    with pytest.raises(Violation, match="1 cursors are left"):
        stored.checks.deleted_group(Entry(1, 2, 0, [GroupRecord(group_key(NAME), None)]))


# --- the log ----------------------------------------------------------------------------------------------


class Leader:
    """Appends to a log, and hears what became of it."""

    def __init__(self, seed: int = 3) -> None:
        self.timeline, self.committed = Timeline(), list[Entry]()
        self.log = ShardLog(self.timeline, Random(seed), 1_000, self.committed.append)
        self.reign = self.log.elect()
        self.heard: list[tuple[int, int | None]] = []

    def append(self, *numbers: int) -> None:
        for number in numbers:
            new = NewCursor(Partition(FIRST.stream, number), CursorPosition(0))
            record = cursor_record(NAME, new, Generation(1))
            self.log.append(self.reign, WriteNumber(number), [record], self.hear)

    def hear(self, number: WriteNumber, at: int | None) -> None:
        self.heard.append((number, at))

    def wait(self, ns: int = 100_000) -> None:
        end = self.timeline.now + ns
        while self.timeline.take_next(end):
            pass

    def numbers(self) -> Sequence[int]:
        return sorted(partition.number for partition in table_of(self.log.entries).cursors_of(NAME))


def test_a_leader_hears_in_order_what_was_committed_and_what_was_refused() -> None:
    leader = Leader()
    leader.append(1, 2)
    leader.log.lacks_replicas = True
    leader.append(3)
    leader.wait()
    assert leader.heard == []
    leader.log.lacks_replicas = False
    leader.append(4)
    leader.wait()
    assert leader.heard == [(1, 0), (2, 1), (3, None), (4, 2)]
    assert leader.numbers() == [1, 2, 4]


def test_of_what_a_leader_that_was_deposed_has_appended_a_first_part_is_committed() -> None:
    ends = set()
    for seed in range(50):
        leader = Leader(seed)
        leader.append(1, 2, 3)
        leader.log.elect()
        leader.append(4)
        leader.wait()
        assert leader.heard == []
        assert leader.numbers() == list(range(1, 1 + leader.log.unsaid))
        ends.add(leader.log.unsaid)
    assert ends == {0, 1, 2, 3}
