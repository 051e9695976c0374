"""The rules of a group's coordinator, one after the other."""

import pytest

from consumer_groups.assignment.partitions import Claim, Generation, MemberId, Partition, StreamPartitions
from consumer_groups.coordinator.coordinator import STOOD_STILL_NS, Coordinator
from consumer_groups.coordinator.events import (
    Assigned,
    Expire,
    ExpiryCause,
    Joined,
    Left,
    MemberRefused,
    PartitionsChanged,
    Persist,
    SetTimer,
    Tick,
)
from envelope.group_errors import IllegalGeneration, MemberFenced
from envelope.types import MonotonicNs, StreamName
from tests.support.group_coordination import (
    NAME,
    REBALANCE,
    SECOND,
    SESSION,
    Group,
    assigned,
    join,
    names,
    of_type,
)

ORDERS = StreamName("orders")


def two_members() -> Group:
    """Return a group in which ``a.1`` and ``b.1`` own two of four partitions each."""
    group = Group()
    group.join("a")
    group.join("b")
    group.settle()
    assert group.owned() == {"a.1": ["orders[0]", "orders[1]"], "b.1": ["orders[2]", "orders[3]"]}
    return group


# --- joining and rebalancing --------------------------------------------------------------------------


def test_the_first_member_owns_everything_at_once() -> None:
    group = Group(partitions=3)
    assignment = group.join("a")
    assert names(assignment.keeps) == ["orders[0]", "orders[1]", "orders[2]"]
    assert assignment.generation == 1
    assert not assignment.gives_up


def test_a_generation_is_durable_before_anybody_hears_of_it() -> None:
    group = Group()
    group.join("a")
    (persist,) = group.machine.handle(join("b", "orders"), group.now)
    assert isinstance(persist, Persist)
    assert persist.state == group.state
    assert [type(said) for said in persist.then] == [Joined, Assigned]


def test_what_moves_is_asked_for_first_and_granted_once_it_was_given_up() -> None:
    group = Group()
    group.join("a")
    said = group.give(join("b", "orders"))
    (joined,) = of_type(Joined, said)
    assert not joined.assignment.keeps
    asked = assigned(said)["a.1"]
    assert names(asked.keeps) == ["orders[0]", "orders[1]"]
    assert names(asked.gives_up) == ["orders[2]", "orders[3]"]

    told = assigned(group.release("a.1", asked.gives_up))
    assert not told["a.1"].gives_up
    assert names(told["b.1"].keeps) == ["orders[2]", "orders[3]"]
    assert {claim.generation for claim in told["b.1"].keeps} == {asked.generation + 1}


def test_who_gives_up_one_thing_after_the_other_hands_each_over_at_once() -> None:
    group = Group()
    group.join("a")
    first, second = assigned(group.give(join("b", "orders")))["a.1"].gives_up
    assert names(assigned(group.release("a.1", [first]))["b.1"].keeps) == [str(first.partition)]
    assert len(assigned(group.release("a.1", [second]))["b.1"].keeps) == 2


def test_members_that_keep_what_they_have_hear_nothing() -> None:
    group = two_members()
    said = group.give(join("c", "orders"))
    told = assigned(said)
    assert len(told) == 1
    (giver,) = told
    after = assigned(group.release(giver, told[giver].gives_up))
    assert after.keys() == {giver, "c.1"}


def test_a_move_that_is_under_way_is_not_turned_back_by_the_next_one() -> None:
    group = Group(partitions=6)
    group.join("a")
    group.join("b")
    asked = set(group.state.shares()[MemberId("a.1")].gives_up)
    group.join("c")
    assert asked < set(group.state.shares()[MemberId("a.1")].gives_up)


def test_what_was_to_go_to_one_that_leaves_stays_where_it_is_if_it_can() -> None:
    group = Group(partitions=5)
    for client in "zyx":
        group.join(client)
    group.leave("x.1")
    assert len(group.state.shares()[MemberId("z.1")].keeps) == 3


def test_what_was_given_up_unasked_is_granted_anew() -> None:
    group = two_members()
    claim = group.state.shares()[MemberId("a.1")].keeps[0]
    told = assigned(group.release("a.1", [claim]))["a.1"]
    assert Claim(claim.partition, group.state.generation) in told.keeps


def test_another_subscription_moves_only_what_it_must() -> None:
    group = Group()
    group.partition(clicks=2)
    group.join("a", "orders", "clicks")
    changed = group.join("a", "orders", request=2)
    assert names(changed.gives_up) == ["clicks[0]", "clicks[1]"]
    assert len(changed.keeps) == 4
    group.settle()
    assert len(group.owned()["a.1"]) == 4


def test_who_was_put_out_and_joins_anew_gets_back_what_it_had() -> None:
    group = Group()
    group.join("a")
    wishes = tuple(Claim(Partition(ORDERS, number), Generation(99)) for number in (0, 2, 77))
    group.join("b", owned=wishes)
    group.settle()
    assert group.owned() == {"a.1": ["orders[1]", "orders[3]"], "b.1": ["orders[0]", "orders[2]"]}


def test_a_wish_moves_nothing_that_would_not_move_anyway() -> None:
    group = two_members()
    group.partition(clicks=2)
    wishes = tuple(Claim(Partition(ORDERS, number), Generation(99)) for number in range(4))
    group.join("c", "orders", "clicks", owned=wishes)
    assert not [share for share in group.state.shares().values() if share.gives_up]
    group.join("d", owned=wishes)
    assert sum(len(share.gives_up) for share in group.state.shares().values()) == 1


def test_members_of_one_group_want_one_assignor() -> None:
    group = Group()
    group.join("a")
    wrong = group.refused(join("b", "orders", assignor="range"))
    assert wrong.refusal.error.err_code == "invalid_config"


# --- going --------------------------------------------------------------------------------------------


def test_who_leaves_hands_everything_over_at_once() -> None:
    group = two_members()
    said = group.leave("b.1")
    assert of_type(Left, said)
    assert len(assigned(said)["a.1"].keeps) == 4
    assert group.leave("b.1") == of_type(Left, said)


def test_the_partitions_of_a_silent_member_go_to_others_and_it_is_fenced() -> None:
    group = two_members()
    generation = group.state.generation
    group.pass_time(SESSION - 1)
    group.beat("a.1")
    assert group.owned().keys() == {"a.1", "b.1"}
    said = group.pass_time(1)
    assert of_type(Expire, said) == [Expire(MemberId("b.1"), ExpiryCause.SILENT)]
    assert len(group.owned()["a.1"]) == 4
    ((zombie, refusal),) = group.beat("b.1").refused
    assert (zombie, refusal.error) == ("b.1", MemberFenced)
    (refused,) = of_type(MemberRefused, group.release("b.1", []))
    assert refused.refusal.error is MemberFenced
    assert "CommitRefused" in repr(group.commit("b.1", 2, generation=generation))


def test_who_keeps_what_it_was_asked_for_is_put_out() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    for _ in range(REBALANCE // SECOND - 1):
        group.pass_time(SECOND)
        group.beat("a.1", "b.1")
    assert group.owned().keys() == {"a.1", "b.1"}
    said = group.pass_time(SECOND)
    assert of_type(Expire, said) == [Expire(MemberId("a.1"), ExpiryCause.HELD_ON)]
    assert len(group.owned()["b.1"]) == 4


def test_the_rebalance_timeout_counts_from_the_first_thing_that_was_asked_for() -> None:
    group = Group(partitions=6)
    group.join("a")
    group.join("b")
    group.now = MonotonicNs(group.now + REBALANCE - SECOND)
    group.beat("a.1", "b.1")
    group.join("c")
    assert of_type(Expire, group.pass_time(SECOND)) == [Expire(MemberId("a.1"), ExpiryCause.HELD_ON)]


def test_what_was_asked_for_while_the_coordinator_stood_still_may_be_given_up_after_it() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    group.now = MonotonicNs(group.now + REBALANCE)
    assert not of_type(Expire, group.give(Tick()))
    group.beat("a.1", "b.1")
    assert not of_type(Expire, group.pass_time(SESSION - 1))


def test_a_join_that_is_sent_again_says_that_the_member_is_alive_and_an_older_one_does_not() -> None:
    group = Group()
    group.join("a", request=2)
    group.join("b")
    group.settle()
    group.pass_time(SESSION - 1)
    group.join("a", request=1)
    group.join("b", request=1)
    assert of_type(Expire, group.pass_time(1)) == [Expire(MemberId("a.2"), ExpiryCause.SILENT)]


def test_one_heartbeat_is_that_of_all_members_of_a_connection() -> None:
    group = two_members()
    for _ in range(3):
        group.pass_time(SESSION - 1)
        assert group.beat("a.1", "b.1") == group.beat("a.1", "b.1")
    assert group.owned().keys() == {"a.1", "b.1"}


def test_a_heartbeat_is_answered_with_what_the_member_has_not_heard() -> None:
    group = Group()
    heard = group.join("a").generation
    group.join("b")
    assert names(group.beat("a.1", generation=heard).assignments[0].gives_up) == ["orders[2]", "orders[3]"]
    assert not group.beat("a.1").assignments


def test_a_generation_that_there_never_was_is_not_heard() -> None:
    group = two_members()
    ((_, refusal),) = group.beat("a.1", generation=99).refused
    assert refusal.error is IllegalGeneration


def test_a_tick_that_comes_late_puts_nobody_out_before_heartbeats_that_wait_behind_it() -> None:
    group = two_members()
    group.now = MonotonicNs(group.now + SESSION + STOOD_STILL_NS + 1)
    assert not of_type(Expire, group.give(Tick()))
    group.beat("a.1")
    assert of_type(Expire, group.pass_time(STOOD_STILL_NS)) == [Expire(MemberId("b.1"), ExpiryCause.SILENT)]


def test_the_timer_is_set_for_whoever_is_due_first() -> None:
    group = Group()
    (_, timer) = group.machine.handle(join("a", "orders"), group.now)
    assert timer == SetTimer(MonotonicNs(group.now + SESSION))
    hasty = join("b", "orders", session_timeout_ns=2 * SECOND)
    (_, timer) = group.machine.handle(hasty, group.now)
    assert timer == SetTimer(MonotonicNs(group.now + 2 * SECOND))
    group.beat("b.1")
    assert group.machine.handle(Tick(), MonotonicNs(group.now + SECOND)) == (timer,)


def test_a_group_without_members_sets_no_timer_and_keeps_its_generation() -> None:
    group = Group()
    group.join("a")
    group.leave("a.1")
    assert group.machine.handle(Tick(), group.now) == ()
    assert group.join("b").generation > 2


# --- partitions ---------------------------------------------------------------------------------------


def test_partitions_that_are_added_are_granted_and_nothing_moves() -> None:
    group = two_members()
    before = group.owned()
    told = assigned(group.partition(orders=6))
    assert {member: len(claims) for member, claims in group.owned().items()} == {"a.1": 3, "b.1": 3}
    assert all(set(before[member]) < set(names(told[member].keeps)) for member in before)


def test_a_stream_that_comes_to_be_is_shared_out_among_those_who_subscribed_before() -> None:
    group = Group()
    assert not group.join("a", "later").keeps
    assert len(assigned(group.partition(later=2))["a.1"].keeps) == 2


def test_partitions_of_a_deleted_stream_are_nobodys_at_once() -> None:
    group = two_members()
    group.give(PartitionsChanged((), (ORDERS,)))
    assert group.owned() == {"a.1": [], "b.1": []}
    assert "CommitRefused" in repr(group.commit("a.1", 0, generation=group.state.generation))
    group.partition(orders=1)
    assert sum(map(len, group.owned().values())) == 1


def test_what_is_known_of_partitions_already_changes_nothing() -> None:
    group = two_members()
    known = PartitionsChanged((StreamPartitions(ORDERS, 4), StreamPartitions(StreamName("other"), 9)))
    assert group.machine.handle(known, group.now) == ()


# --- failover -----------------------------------------------------------------------------------------


def test_another_coordinator_goes_on_from_what_is_durable_and_moves_nothing() -> None:
    group = two_members()
    other = Group(state=group.durable)
    other.now = MonotonicNs(other.now + SESSION - 1)
    answered = other.beat("a.1", "b.1")
    assert not answered.refused
    assert not answered.assignments
    assert other.owned() == group.owned()
    assert other.state.generation == group.state.generation


def test_after_a_failover_everybody_has_a_full_session_timeout() -> None:
    group = two_members()
    other = Group(state=group.durable)
    assert not of_type(Expire, other.pass_time(SESSION - 1))
    other.beat("a.1")
    assert of_type(Expire, other.pass_time(1)) == [Expire(MemberId("b.1"), ExpiryCause.SILENT)]


def test_after_a_failover_a_rebalance_under_way_goes_on() -> None:
    group = Group()
    group.join("a")
    asked = assigned(group.give(join("b", "orders")))["a.1"]
    other = Group(state=group.durable)
    other.release("a.1", asked.gives_up)
    assert other.beat("b.1", generation=asked.generation).assignments[0].keeps
    assert not other.state.shares()[MemberId("a.1")].gives_up


def test_after_a_failover_who_joins_shares_in_what_is_known_of_partitions() -> None:
    group = two_members()
    other = Group(state=group.durable)
    other.join("c")
    other.settle()
    assert sorted(len(claims) for claims in other.owned().values()) == [1, 1, 2]


def test_nothing_is_taken_in_before_what_is_durable_is_known() -> None:
    with pytest.raises(AssertionError):
        Coordinator(NAME).handle(Tick(), MonotonicNs(0))
