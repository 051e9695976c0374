"""Who may not act for a group any more: late, doubled, replaced and forgotten requests and members."""

from dataclasses import replace

import pytest

from consumer_groups.assignment.partitions import InstanceId, MemberId
from consumer_groups.coordinator.events import (
    Beat,
    CommitAllowed,
    CommitRefused,
    HeartbeatAnswered,
    MemberHeartbeat,
)
from envelope import limits
from envelope.errors import InvalidConfig, InvalidName, JetstreamError, LimitReached
from envelope.group_errors import IllegalGeneration, InstanceFenced, MemberFenced, PartitionNotOwned
from envelope.types import StreamName
from tests.support.group_coordination import SECOND, SESSION, Group, assigned, join, of_type

ONE = InstanceId("one")


# --- commits ------------------------------------------------------------------------------------------


def test_an_owner_may_commit_in_the_generation_since_which_it_owns_and_in_every_later_one() -> None:
    group = Group()
    first = group.join("a").generation
    group.join("b")
    for generation in (first, group.state.generation):
        assert isinstance(group.commit("a.1", 0, 3, generation=generation), CommitAllowed)


def refusal(said: object) -> type[JetstreamError]:
    assert isinstance(said, CommitRefused)
    return said.refusal.error


def test_who_does_not_own_one_of_the_partitions_commits_none() -> None:
    group = Group()
    group.join("a")
    asked = assigned(group.give(join("b", "orders")))["a.1"]
    assert refusal(group.commit("b.1", 3, generation=asked.generation)) is PartitionNotOwned
    group.release("a.1", asked.gives_up)
    assert refusal(group.commit("a.1", 0, 3, generation=group.state.generation)) is PartitionNotOwned
    assert isinstance(group.commit("b.1", 3, generation=group.state.generation), CommitAllowed)


def test_a_commit_from_an_earlier_time_of_ownership_is_refused() -> None:
    group = Group()
    group.join("a")
    asked = assigned(group.give(join("b", "orders")))["a.1"]
    group.release("a.1", asked.gives_up)
    group.leave("b.1")
    assert refusal(group.commit("a.1", 3, generation=asked.generation)) is IllegalGeneration
    assert isinstance(group.commit("a.1", 3, generation=group.state.generation), CommitAllowed)


def test_a_commit_of_a_generation_that_there_never_was_is_refused() -> None:
    group = Group()
    group.join("a")
    assert refusal(group.commit("a.1", 0, generation=99)) is IllegalGeneration


# --- requests that come twice, or late ----------------------------------------------------------------


def test_a_join_that_comes_twice_makes_one_member() -> None:
    group = Group()
    first = group.join("a")
    state = group.state
    again = group.join("a", fresh_id=MemberId("other"))
    assert again == first
    assert group.state is state


def test_a_join_that_comes_after_a_later_one_changes_nothing() -> None:
    group = Group()
    group.partition(clicks=1)
    group.join("a")
    group.join("a", "orders", "clicks", request=2)
    state = group.state
    group.join("a", request=1)
    assert group.state is state


def test_a_join_whose_member_is_gone_does_not_bring_it_back() -> None:
    group = Group()
    group.join("a", request=7)
    group.leave("a.7")
    for late in (7, 6):
        assert group.refused(join("a", "orders", request=late)).refusal.error is MemberFenced
    assert group.join("a", request=8).member_id == "a.8"


def test_a_limited_number_of_clients_that_are_gone_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer_groups.coordinator.succession.GROUP_GONE_MAX", 3)
    group = Group()
    for client in "abcde":
        group.join(client)
        group.leave(f"{client}.1")
    assert list(group.state.gone) == ["c", "d", "e"]


def test_a_release_that_comes_late_does_not_give_up_what_was_granted_again() -> None:
    group = Group()
    group.join("a")
    asked = assigned(group.give(join("b", "orders")))["a.1"]
    group.release("a.1", asked.gives_up)
    group.leave("b.1")
    state = group.state
    assert len(assigned(group.release("a.1", asked.gives_up))["a.1"].keeps) == 4
    assert group.state is state


def test_nobody_gives_up_what_others_own() -> None:
    group = Group()
    group.join("a")
    group.join("b")
    state = group.state
    group.release("b.1", [claim for share in state.shares().values() for claim in share.keeps])
    assert group.state is state


def test_a_member_id_of_another_client_or_of_nobody_does_not_join() -> None:
    group = Group()
    group.join("a")
    for client, member in (("b", "a.1"), ("b", "nobody"), ("a", "nobody")):
        asked = join(client, "orders", request=9, member_id=MemberId(member))
        assert group.refused(asked).refusal.error is MemberFenced


# --- static members -----------------------------------------------------------------------------------


def restarted() -> Group:
    """Return a group in which instance ``one`` was ``a.1``, and is ``c.1`` since it was started again."""
    group = Group()
    group.join("a", instance_id=ONE)
    group.join("b")
    group.settle()
    before = group.owned()
    said = group.give(join("c", "orders", instance_id=ONE))
    assert group.owned() == {"b.1": before["b.1"], "c.1": before["a.1"]}
    assert not assigned(said)
    return group


def test_a_static_member_that_restarts_has_what_it_had_and_nothing_moves() -> None:
    group = restarted()
    share = group.state.shares()[MemberId("c.1")]
    assert {claim.generation for claim in share.keeps} == {group.state.generation}
    assert not share.gives_up


def test_the_older_of_two_with_one_instance_id_is_fenced_and_told_so() -> None:
    group = restarted()
    beat = MemberHeartbeat(join("a").connection, (Beat(MemberId("a.1"), group.state.generation, ONE),))
    (answered,) = of_type(HeartbeatAnswered, group.give(beat))
    assert [refusal.error for _, refusal in answered.refused] == [InstanceFenced]
    back = join("a", "orders", request=2, instance_id=ONE, member_id=MemberId("a.1"))
    assert group.refused(back).refusal.error is InstanceFenced
    assert refusal(group.commit("a.1", 0, generation=group.state.generation)) is MemberFenced


def test_a_late_join_of_the_older_does_not_take_the_place_back() -> None:
    group = restarted()
    assert group.refused(join("a", "orders", instance_id=ONE)).refusal.error is MemberFenced


def test_a_static_member_that_restarts_while_it_is_asked_for_something_hands_that_over() -> None:
    group = Group()
    group.join("a", instance_id=ONE)
    group.join("b")
    told = assigned(group.give(join("c", "orders", instance_id=ONE)))
    assert len(told["b.1"].keeps) == 2
    assert not group.state.shares()[MemberId("c.1")].gives_up


def test_a_static_member_that_restarts_with_another_subscription_has_its_partitions_shared_out() -> None:
    group = Group()
    group.partition(clicks=2)
    group.join("a", instance_id=ONE)
    changed = group.join("c", "clicks", instance_id=ONE)
    assert len(changed.keeps) == 2
    assert len(changed.gives_up) == 4


def test_a_static_member_that_is_away_too_long_is_put_out_like_any_other() -> None:
    group = Group()
    group.join("a", instance_id=ONE)
    group.join("b")
    group.settle()
    group.pass_time(SESSION - 1)
    group.beat("b.1")
    group.pass_time(1)
    assert group.owned().keys() == {"b.1"}


def test_a_member_does_not_become_another_instance() -> None:
    group = Group()
    group.join("a", instance_id=ONE)
    changed = join("a", "orders", request=2, instance_id=InstanceId("two"))
    assert group.refused(changed).refusal.error is InvalidConfig


# --- limits -------------------------------------------------------------------------------------------

_MANY = frozenset(StreamName(f"s{number}") for number in range(limits.MEMBER_STREAMS_MAX + 1))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"client": ""}, InvalidName),
        ({"client": "x" * (limits.MEMBER_WORD_BYTES_MAX + 1)}, InvalidName),
        ({"instance_id": "a\nb"}, InvalidName),
        ({"node": "\ud800"}, InvalidName),
        ({"rack": "é" * limits.MEMBER_WORD_BYTES_MAX}, InvalidName),
        ({"streams": frozenset()}, InvalidConfig),
        ({"streams": frozenset({"no stream"})}, InvalidName),
        ({"streams": _MANY}, LimitReached),
        ({"owned": (None,) * (limits.MEMBER_CLAIMS_MAX + 1)}, LimitReached),
        ({"session_timeout_ns": SECOND - 1}, InvalidConfig),
        ({"session_timeout_ns": 1_801 * SECOND}, InvalidConfig),
        ({"rebalance_timeout_ns": 0}, InvalidConfig),
        ({"rebalance_timeout_ns": 1_801 * SECOND}, InvalidConfig),
    ],
)
def test_a_join_outside_its_limits_is_refused(
    changes: dict[str, object], error: type[JetstreamError]
) -> None:
    asked = replace(join("a", "orders"), **changes)  # type: ignore[arg-type] # fields by name
    assert Group().refused(asked).refusal.error is error


def test_a_group_that_is_full_takes_nobody_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumer_groups.coordinator.membership.GROUP_MEMBERS_MAX", 2)
    group = Group()
    group.join("a", instance_id=ONE)
    group.join("b")
    assert group.refused(join("c", "orders")).refusal.error is LimitReached
    group.join("b", request=2)
    group.join("d", instance_id=ONE)


def test_names_of_all_members_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    group.join("a")
    size = sum(member.names_bytes for member in group.state.members.values())
    monkeypatch.setattr("consumer_groups.coordinator.membership.GROUP_NAMES_BYTES_MAX", 2 * size - 1)
    asked = join("b", "orders")
    assert group.refused(asked).refusal.error is LimitReached
    monkeypatch.setattr("consumer_groups.coordinator.membership.GROUP_NAMES_BYTES_MAX", 2 * size)
    group.give(asked)
    assert group.owned().keys() == {"a.1", "b.1"}
