"""The rules of a shard: what waits for what is written, what is told when, and what is refused."""

import pytest

from consumer_groups.assignment.partitions import Generation, GroupName, MemberId, StreamPartitions
from consumer_groups.coordinator.events import Assignment, Beat, ExpiryCause, Leave, Left, Tick
from consumer_groups.coordinator.sessions import NEVER
from consumer_groups.shard import group_queue as group_run
from consumer_groups.shard.events import (
    NO_NEWS,
    Beats,
    ConnectionClosed,
    DeleteGroup,
    Done,
    Expired,
    QuestionId,
    ShardWritten,
    StreamsChanged,
    WriteNumber,
)
from consumer_groups.shard.group_json import from_json
from consumer_groups.shard.shard import Shard
from envelope.errors import NotEnoughReplicas, Overloaded
from envelope.group_errors import MemberFenced
from envelope.types import MonotonicNs, StreamName, TimestampUs
from tests.support.group_coordination import SECOND, SESSION, names
from tests.support.shard_at_work import READERS, ShardAtWork, audit, committing, cursors, joining, two_members

ORDERS = StreamName("orders")


# --- what is written and what waits -----------------------------------------------------------------------


def test_a_join_is_answered_once_its_group_is_durable() -> None:
    work = ShardAtWork()
    question = work.ask(joining("a"))
    ((number, ((key, value),)),) = [(write.number, write.records) for write in work.writes]
    assert (number, key) == (1, b"group/readers")
    assert value is not None
    assert from_json(value).members.keys() == {"a.1"}
    assert question not in work.answers
    assert (work.shard.groups, work.shard.members) == (1, 0)
    work.commit()
    answer = work.answers[question]
    assert isinstance(answer, Assignment)
    assert (answer.member_id, len(answer.keeps)) == ("a.1", 4)
    assert (work.shard.groups, work.shard.members) == (1, 1)
    audit(work)


def test_what_is_asked_of_a_group_waits_for_its_write_and_other_groups_do_not() -> None:
    work = ShardAtWork()
    first, second = work.ask(joining("a")), work.ask(joining("b"))
    other = work.ask(joining("c"), "others")
    assert [write.records[0].key for write in work.writes] == [b"group/readers", b"group/others"]
    work.commit(2)
    assert work.answers.keys() == {first, other}
    work.commit()
    assert isinstance(work.answers[second], Assignment)
    assert work.state().generation == 2


def test_writes_are_settled_in_order_and_once() -> None:
    work = two_members()
    question = work.ask(committing("a.1", *cursors(1)))
    number = work.writes[0].number
    with pytest.raises(AssertionError, match="H1"):
        work.give(ShardWritten(WriteNumber(number + 1), TimestampUs(0)))
    work.commit()
    assert question in work.answers
    with pytest.raises(AssertionError, match="H1"):
        work.give(ShardWritten(number, TimestampUs(0)))
    with pytest.raises(AssertionError, match="H1"):
        work.give(ShardWritten(WriteNumber(number + 1), TimestampUs(0)))


def test_a_refused_change_has_not_happened_and_all_who_wait_for_it_are_told() -> None:
    work = two_members()
    before = work.state()
    joins = [work.ask(joining("c")), work.ask(joining("d"))]
    work.refuse()
    assert [work.failure(question) for question in joins] == [NotEnoughReplicas] * 2
    assert not work.writes
    assert work.state() is before
    assert work.join("c").generation == before.generation + 1
    audit(work)


def test_after_a_refused_change_everybody_has_a_full_session() -> None:
    work = two_members()
    work.pass_time(SESSION - SECOND)
    work.ask(joining("c"))
    work.refuse()
    work.pass_time(SESSION - 1)
    assert not work.expired
    work.pass_time(1)
    assert {expired.member_id for expired in work.expired} == {"a.1", "b.1"}


def test_a_refused_change_that_nobody_asked_for_is_tried_again_after_a_pause() -> None:
    work = two_members()
    work.partition(orders=6)
    work.refuse()
    assert not work.writes
    work.pass_time(group_run.REFUSED_PAUSE_NS - 1)
    assert work.state().streams == {ORDERS: 4}
    work.pass_time(1)
    assert work.state().streams == {ORDERS: 6}


def test_a_deletion_is_not_forgotten_when_its_write_is_refused() -> None:
    """The stream exists again by then: its partitions are others all the same."""
    work = two_members()
    owned = dict(work.state().grants)
    work.partition("orders")
    work.partition(orders=4)
    work.refuse()
    work.pass_time(group_run.REFUSED_PAUSE_NS)
    assert work.state().grants.keys() == owned.keys()
    assert all(grant.generation > 3 for grant in work.state().grants.values())


def test_what_became_of_streams_is_told_before_anything_that_is_asked() -> None:
    """Also in the pause: later, a deletion would take partitions of the stream that was made since."""
    work = two_members()
    work.partition("orders")
    work.refuse()
    work.partition(orders=4)
    work.join("c")
    generation = work.state().generation
    assert len(work.state().grants) == 4
    work.pass_time(2 * group_run.REFUSED_PAUSE_NS)
    assert work.state().generation == generation


def test_a_stream_that_was_deleted_and_made_again_meanwhile_is_shared_out_anew() -> None:
    work = two_members()
    work.ask(joining("c"))
    work.give(StreamsChanged((StreamPartitions(ORDERS, 4),), (ORDERS,)))
    work.commit()
    assert all(grant.generation > 4 for grant in work.state().grants.values())
    assert len(work.state().grants) == 4


def test_streams_are_those_that_somebody_subscribes_to_whether_they_exist_or_not() -> None:
    work = two_members()
    work.join("c", "later", group="others")
    assert work.shard.subscribed == {"orders", "later"}
    work.partition(later=2)
    assert not work.state("others").grants
    work.commit()
    assert len(work.state("others").grants) == 2
    work.answer(Done, DeleteGroup(force=True), "others")
    assert work.shard.subscribed == {"orders"}


def test_a_join_knows_what_was_told_of_its_streams_before_anybody_subscribed() -> None:
    work = ShardAtWork()
    work.partition(clicks=3)
    work.join("a", "clicks")
    work.join("a", "orders", request=2)
    work.settle()
    work.give(StreamsChanged((StreamPartitions(StreamName("clicks"), 5),)))
    work.commit()
    assert work.shard.subscribed == {"orders"}
    assert len(work.join("a", "clicks", request=3).keeps) == 5
    work.join("a", "orders", request=4)
    work.settle()
    work.give(StreamsChanged((StreamPartitions(StreamName("clicks"), 6),)))
    work.commit()
    assert work.shard.subscribed == {"orders"}
    work.give(StreamsChanged((), (StreamName("clicks"),)))
    assert names(work.join("a", "clicks", request=5).keeps) == []


def test_a_join_that_shows_that_a_stream_is_gone_waits_until_that_is_durable() -> None:
    """The shell is to have told it before: it tells of streams that exist only."""
    log = two_members().log
    work = ShardAtWork(log)
    work.shard = Shard(work.table, work.now)
    work.give(StreamsChanged((StreamPartitions(StreamName("clicks"), 1),)))
    question = work.ask(joining("c", "orders", "clicks"))
    assert len(work.writes) == 1
    work.commit(1)
    assert work.state().streams == {}
    assert question not in work.answers
    work.commit()
    answer = work.answers[question]
    assert isinstance(answer, Assignment)
    assert names(answer.keeps) == ["clicks[0]"]


def test_as_many_requests_wait_as_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_run, "GROUP_WAITING_MAX", 3)
    work = ShardAtWork()
    questions = [work.ask(joining(client)) for client in "abcd"]
    assert work.failure(questions[3]) is Overloaded
    work.commit()
    assert all(isinstance(work.answers[question], Assignment) for question in questions[:3])


def test_leaving_a_group_that_there_is_not_is_having_left() -> None:
    work = ShardAtWork()
    work.answer(Left, Leave(joining("a").connection, MemberId("a.1")), "none")
    assert (work.shard.groups, len(work.log)) == (0, 0)


def test_a_group_that_all_have_left_is_not_woken_up() -> None:
    work = ShardAtWork()
    work.join("a")
    work.leave("a.1")
    work.commit()
    work.pass_time(2 * SESSION)
    assert not work.writes
    assert work.shard.subscribed == frozenset()


# --- another reign ----------------------------------------------------------------------------------------


def test_another_reign_goes_on_with_what_is_durable_and_moves_nothing() -> None:
    work = two_members()
    work.answer(object, committing("a.1", *cursors(7, 8), generation=3))
    before = work.state()
    work.ask(joining("c"))
    work.take_over()
    assert work.state() == before
    assert not work.writes
    assert work.fetched() == [7, 8]
    assert work.news(work.beat("a.1", "b.1", generation=3)) == NO_NEWS
    assert work.shard.subscribed == {"orders"}
    assert (work.shard.groups, work.shard.members, work.shard.cursors) == (1, 2, 2)
    work.pass_time(SESSION - 1)
    assert not work.expired
    work.pass_time(1)
    assert work.expired == [Expired(READERS, MemberId(each), ExpiryCause.SILENT) for each in ("a.1", "b.1")]


def test_another_reign_grants_what_was_given_up_in_the_former() -> None:
    work = ShardAtWork()
    work.join("a")
    work.join("b")
    asked = work.state().shares()[MemberId("a.1")].gives_up
    work.take_over()
    work.release("a.1", asked)
    work.commit()
    assert len(work.state().shares()[MemberId("b.1")].keeps) == 2


# --- heartbeats -------------------------------------------------------------------------------------------


def test_a_heartbeat_waits_until_there_is_news() -> None:
    work = two_members()
    question = work.beat("a.1", "b.1", generation=3, wait=SECOND)
    assert question not in work.answers
    work.join("c")
    news = work.news(question)
    assert [(group, assignment.member_id) for group, assignment in news.assignments] == [("readers", "a.1")]
    assert news.assignments[0][1].gives_up
    again = work.beat("a.1", "b.1", generation=3, wait=SECOND)
    assert work.news(again) == news


def test_a_heartbeat_hears_of_each_generation_once_that_is_durable() -> None:
    work = two_members()
    question = work.beat("a.1", "b.1", generation=3, wait=SECOND)
    work.ask(joining("c"))
    work.ask(joining("d"))
    work.commit(1)
    assert [assignment.generation for _, assignment in work.news(question).assignments] == [4]


def test_the_timer_is_set_again_only_if_something_is_due_before() -> None:
    work = two_members()
    work.timer = NEVER
    work.beat("a.1", generation=3, wait=5 * SECOND)
    assert work.timer == work.now + 5 * SECOND
    work.timer = NEVER
    work.beat("b.1", generation=3, wait=6 * SECOND, connection="other")
    assert work.timer == NEVER


def test_a_heartbeat_is_answered_when_its_wait_is_over() -> None:
    work = two_members()
    question = work.beat("a.1", generation=3, wait=SECOND)
    work.pass_time(SECOND - 1)
    assert question not in work.answers
    work.pass_time(1)
    assert work.news(question) == NO_NEWS
    assert work.news(work.beat("a.1", generation=3)) == NO_NEWS


def test_a_connection_has_one_heartbeat_that_waits() -> None:
    work = two_members()
    first, other = (work.beat("a.1", generation=3, wait=SECOND, connection=name) for name in "xy")
    second = work.beat("a.1", generation=3, wait=SECOND, connection="x")
    assert work.news(first) == NO_NEWS
    assert not {second, other} & work.answers.keys()
    work.join("c")
    assert work.news(second) == work.news(other) != NO_NEWS


def test_a_heartbeat_waits_no_longer_than_its_connection_is_open() -> None:
    work = two_members()
    question = work.beat("a.1", generation=3, wait=SECOND)
    work.give(ConnectionClosed(joining("shared").connection))
    assert work.news(question) == NO_NEWS
    work.join("c")
    assert work.state().members.keys() == {"a.1", "b.1", "c.1"}


def test_nobody_hears_of_a_generation_that_is_not_durable() -> None:
    work = two_members()
    work.ask(joining("c"))
    early = work.beat("a.1", generation=3)
    waiting = work.beat("a.1", generation=3, wait=SECOND)
    assert work.news(early) == NO_NEWS
    assert waiting not in work.answers
    work.refuse()
    assert waiting not in work.answers
    work.join("c")
    assert work.news(waiting).assignments[0][1].generation == 4


def test_who_beats_while_the_group_is_written_is_heard() -> None:
    work = two_members()
    work.pass_time(SESSION - SECOND)
    work.ask(joining("c"))
    work.beat("a.1", generation=3)
    work.commit()
    work.pass_time(2 * SECOND)
    assert [expired.member_id for expired in work.expired] == ["b.1"]


def test_a_tick_while_the_group_is_written_waits_and_nobody_is_put_out_for_it() -> None:
    work = two_members()
    work.pass_time(SESSION - SECOND)
    work.ask(joining("c"))
    work.now, work.timer = MonotonicNs(work.timer), MonotonicNs(work.timer + 10**15)
    work.give(Tick())
    assert work.timer > work.now, "a tick that waits is not asked for again"
    work.beat("a.1", "b.1", generation=3)
    work.commit()
    assert not work.expired


def test_a_heartbeat_tells_a_member_that_it_was_put_out() -> None:
    work = two_members()
    question = work.beat("a.1", generation=3, wait=60 * SECOND)
    for _ in range(4):
        work.pass_time(SESSION // 4)
        work.beat("b.1", generation=3, connection="other")
    assert [expired.member_id for expired in work.expired] == ["a.1"]
    ((group, member, refusal),) = work.news(question).refused
    assert (group, member, refusal.error) == ("readers", "a.1", MemberFenced)
    ((_, member, refusal),) = work.news(work.beat("x.1", generation=3, group="none")).refused
    assert (member, refusal.error) == ("x.1", MemberFenced)


def test_one_heartbeat_is_for_members_of_several_groups() -> None:
    work = two_members()
    work.join("c", group="others")
    work.join("d", group="others")
    question, connection = QuestionId(10**6), joining("shared").connection
    beats = [("readers", "a.1", 3), ("others", "c.1", 1), ("others", "d.1", 2), ("none", "x.1", 1)]
    said = tuple((GroupName(group), Beat(MemberId(who), Generation(at))) for group, who, at in beats)
    work.give(Beats(question, connection, said, SECOND))
    news = work.news(question)
    assert [(group, each.member_id) for group, each in news.assignments] == [("others", "c.1")]
    assert [(group, member) for group, member, _ in news.refused] == [("none", "x.1")]
    work.give(Beats(question_two := QuestionId(10**6 + 1), connection, said[:1], SECOND))
    assert question_two not in work.answers
