"""What operators ask of a shard, and what is hostile, too much or damaged."""

import pytest

from consumer_groups.assignment.partitions import Generation, GroupName, MemberId
from consumer_groups.coordinator.events import Assignment, ExpiryCause, Leave, Left
from consumer_groups.coordinator.group_state import NO_GENERATION, GroupState
from consumer_groups.shard import shard
from consumer_groups.shard.events import (
    NO_NEWS,
    CursorsCommitted,
    DeleteGroup,
    DescribeGroup,
    Done,
    Expired,
    GroupDescription,
    GroupOverview,
    GroupsFound,
    Listed,
    LookUpCursors,
    QuestionId,
    ResetCursors,
)
from consumer_groups.shard.records import GroupRecord, group_key
from envelope.errors import CorruptDataError, InvalidName, LimitReached, NotEnoughReplicas
from envelope.group_errors import GroupInUse, MemberFenced, UnknownGroup
from tests.support.group_coordination import SECOND
from tests.support.shard_at_work import (
    READERS,
    ShardAtWork,
    audit,
    committing,
    cursors,
    joining,
    orders,
    two_members,
)

# --- operators --------------------------------------------------------------------------------------------


def test_a_reset_is_refused_while_there_are_members_and_by_force_puts_them_out_in_the_same_write() -> None:
    work = two_members()
    work.answer(object, committing("a.1", *cursors(100), generation=3))
    waiting = work.beat("a.1", generation=3, wait=SECOND)
    assert type(work.error(ResetCursors(cursors(7)))) is GroupInUse
    question = work.ask(ResetCursors(cursors(7, 8), force=True))
    (write,) = work.writes
    assert [record.key for record in write.records] == [
        b"group/readers",
        b"group/readers/orders/0",
        b"group/readers/orders/1",
    ]
    late = work.ask(committing("a.1", *cursors(101), generation=3, request=2))
    work.commit()
    assert work.answers[question] == Done()
    assert work.failure(late) is MemberFenced
    assert work.news(waiting).refused[0][2].error is MemberFenced
    assert work.expired == [Expired(READERS, MemberId(each), ExpiryCause.FORCED) for each in ("a.1", "b.1")]
    assert work.fetched() == [7, 8]
    assert work.state().generation == 4
    audit(work)


def test_a_reset_by_force_that_is_refused_leaves_members_and_cursors() -> None:
    work = two_members()
    work.answer(object, committing("a.1", *cursors(100), generation=3))
    question = work.ask(ResetCursors(cursors(7), force=True))
    work.refuse()
    assert work.failure(question) is NotEnoughReplicas
    assert work.fetched() == [100]
    assert not work.expired
    assert work.news(work.beat("a.1", "b.1", generation=3)) == NO_NEWS


def test_a_group_begins_where_an_operator_has_set_it_before_its_first_member() -> None:
    work = ShardAtWork()
    work.answer(Done, ResetCursors(cursors(40, 50)))
    assert (work.shard.groups, work.shard.cursors) == (1, 2)
    assert work.answer(GroupDescription, DescribeGroup()).state == GroupState(READERS)
    work.join("a")
    assert work.fetched() == [40, 50]
    assert work.answer(GroupDescription, DescribeGroup()).state.members.keys() == {"a.1"}


def test_of_a_deleted_group_nothing_is_left() -> None:
    work = two_members()
    work.answer(object, committing("a.1", *cursors(1, 2), generation=3))
    assert type(work.error(DeleteGroup())) is GroupInUse
    work.leave("a.1")
    work.leave("b.1")
    work.commit()
    work.answer(Done, DeleteGroup())
    assert {record.value for record in work.log[-3:]} == {None}
    assert (work.shard.groups, work.shard.members, work.shard.cursors, len(work.table)) == (0, 0, 0, 0)
    assert type(work.error(DeleteGroup())) is UnknownGroup
    assert type(work.error(DescribeGroup())) is UnknownGroup
    audit(work)


def test_members_of_a_group_that_is_deleted_by_force_hear_that_they_are_out() -> None:
    work = two_members()
    waiting = work.beat("a.1", "b.1", generation=3, wait=SECOND)
    question, late = work.ask(DeleteGroup(force=True)), work.ask(joining("d"))
    work.commit()
    assert work.answers[question] == Done()
    assert [refusal.error for _, _, refusal in work.news(waiting).refused] == [MemberFenced] * 2
    assert len(work.expired) == 2
    assert isinstance(work.answers[late], Assignment)
    assert work.state().members.keys() == {"d.1"}
    assert work.state().generation == 1
    audit(work)


def test_a_deletion_takes_in_what_was_under_way() -> None:
    work = two_members()
    commit = work.ask(committing("a.1", *cursors(1), generation=3))
    question = work.ask(DeleteGroup(force=True))
    work.commit()
    assert [work.answers[commit], work.answers[question]] == [CursorsCommitted(), Done()]
    assert work.shard.cursors == 0
    audit(work)


def test_a_deletion_that_is_refused_changes_nothing() -> None:
    work = two_members()
    question = work.ask(DeleteGroup(force=True))
    waiting = work.beat("a.1", generation=3, wait=SECOND)
    work.refuse()
    assert work.failure(question) is NotEnoughReplicas
    assert waiting not in work.answers
    work.answer(object, committing("a.1", *cursors(1), generation=3))
    audit(work)


def test_groups_are_listed_by_name_and_described() -> None:
    work = two_members()
    work.join("c", group="others")
    work.answer(Done, ResetCursors(cursors(9)), "orders/readers")
    everything = (
        GroupOverview(GroupName("orders/readers"), 0, NO_GENERATION),
        GroupOverview(GroupName("others"), 1, Generation(1)),
        GroupOverview(READERS, 2, Generation(3)),
    )
    for number, (prefix, found) in enumerate((("", everything), ("o", everything[:2]), ("x", ()))):
        work.give(Listed(question := QuestionId(10**6 + number), prefix))
        assert work.answers[question] == GroupsFound(found)
    work.answer(object, committing("a.1", *cursors(5, 6), generation=3))
    described = work.answer(GroupDescription, DescribeGroup())
    assert described.state == work.state()
    assert [cursor.offset for cursor in described.cursors] == [5, 6]


# --- what is hostile, too much or damaged -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "a.b", "a b", "\ud800", "g" * 256, "a//b", ">"])
def test_a_group_with_a_name_that_it_cannot_have_is_refused(name: str) -> None:
    work = ShardAtWork()
    requests = (joining("a"), committing("a.1", *cursors(1)), LookUpCursors((orders(),)), DescribeGroup())
    for request in (*requests, ResetCursors(cursors(1)), DeleteGroup()):
        assert type(work.error(request, name)) is InvalidName
    assert work.news(work.beat("a.1", generation=1, group=name)).refused[0][2].error is MemberFenced
    assert (work.shard.groups, len(work.log)) == (0, 0)


def test_a_shard_has_so_many_groups_and_empty_ones_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "GROUPS_MAX", 3)
    work = ShardAtWork()
    for group in ("one", "two"):
        work.join("a", group=group)
        work.answer(Left, Leave(joining("a").connection, MemberId("a.1")), group)
    work.answer(Done, ResetCursors(cursors(1)), "three")
    work.join("a", group="four")
    assert sorted(work.table) == ["four", "three", "two"]
    work.join("a", group="five")
    assert sorted(work.table) == ["five", "four", "three"]
    assert type(work.error(joining("a"), "six")) is LimitReached
    assert type(work.error(ResetCursors(cursors(1)), "six")) is LimitReached
    assert type(work.error(DeleteGroup(), "six")) is UnknownGroup
    work.join("b", group="five")
    assert work.shard.groups == 3
    audit(work)


def test_an_empty_group_that_somebody_joins_does_not_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard, "GROUPS_MAX", 1)
    work = ShardAtWork()
    work.join("a")
    work.leave("a.1")
    work.commit()
    back = work.ask(joining("b"))
    assert type(work.error(joining("a"), "other")) is LimitReached
    assert isinstance(work.answers[back], Assignment)


def test_a_group_that_cannot_be_read_is_told_so_and_can_be_deleted_by_force() -> None:
    work = two_members()
    work.answer(object, committing("a.1", *cursors(5), generation=3))
    work.log.append(GroupRecord(group_key(READERS), b'{"version": 2}'))
    work.take_over()
    requests = (joining("c"), committing("a.1", *cursors(6)), DescribeGroup(), ResetCursors(cursors(1)))
    for request in (*requests, DeleteGroup()):
        assert type(work.error(request)) is CorruptDataError
    assert work.news(work.beat("a.1", generation=3)).refused[0][2].error is CorruptDataError
    assert work.fetched() == [5]
    work.give(Listed(QuestionId(10**6)))
    assert work.answers[QuestionId(10**6)] == GroupsFound((GroupOverview(READERS, 0, NO_GENERATION),))
    question = work.ask(DeleteGroup(force=True))
    work.refuse()
    assert work.failure(question) is NotEnoughReplicas
    assert type(work.error(joining("c"))) is CorruptDataError
    work.answer(Done, DeleteGroup(force=True))
    work.join("c")
    audit(work)


def test_a_cursor_that_cannot_be_read_is_told_so_and_can_be_reset() -> None:
    work = two_members()
    work.answer(object, committing("a.1", *cursors(5, 6), generation=3))
    work.log.append(GroupRecord(b"group/readers/orders/0", b'{"v":2}'))
    work.take_over()
    assert type(work.error(LookUpCursors((orders(0),)))) is CorruptDataError
    assert type(work.error(DescribeGroup())) is CorruptDataError
    assert work.fetched(orders(1)) == [6]
    assert type(work.error(committing("a.1", *cursors(9), generation=3))) is CorruptDataError
    work.answer(object, committing("a.1", *cursors(9), generation=3, request=2, is_reset=True))
    assert work.fetched() == [9, 6]
    audit(work)
