"""The checkers of groups find what they are for, and accept what is right."""

from dataclasses import replace

import pytest

from consumer_groups.coordinator_events import (
    Assignment,
    CommitRequested,
    ConnectionId,
    Expire,
    ExpiryCause,
    Release,
)
from consumer_groups.group_state import Grant, GroupState
from consumer_groups.partitions import Claim, Generation, MemberId, Partition
from envelope.types import StreamName
from tests.simulation.groups.checks import Checks
from tests.simulation.timeline import Timeline
from tests.simulation.violation import Violation
from tests.support.group_coordination import SESSION, Group

FIRST = Partition(StreamName("orders"), 0)
A, B = MemberId("a.1"), MemberId("b.1")
CONNECTION = ConnectionId("c")


def checked() -> tuple[Checks, GroupState, Timeline]:
    """Return checkers that know a durable group of two members; ``a.1`` owns the first partition."""
    group = Group()
    group.join("a")
    group.join("b")
    timeline = Timeline()
    checks = Checks(timeline, {})
    checks.made_durable(group.state, 0)
    return checks, group.state, timeline


def moved(state: GroupState) -> GroupState:
    """Return the next generation, in which ``b.1`` owns the first partition."""
    generation = Generation(state.generation + 1)
    return replace(state, generation=generation, grants={**state.grants, FIRST: Grant(B, generation)})


def commit(member: MemberId, generation: int, request: int = 1) -> CommitRequested:
    return CommitRequested(CONNECTION, member, request, Generation(generation), (FIRST,))


def test_a_generation_that_comes_again_is_found() -> None:
    checks, state, _ = checked()
    with pytest.raises(Violation, match="generation"):
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


def test_a_commit_that_must_not_be_allowed_is_found() -> None:
    checks, state, _ = checked()
    since = state.grants[FIRST].generation
    checks.allowed(commit(A, since, request=2))
    for wrong in (commit(B, state.generation), commit(A, since - 1)):
        with pytest.raises(Violation, match=r"commit|Commit"):
            checks.allowed(wrong)


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
    timeline.now = SESSION - 1
    for cause in ExpiryCause:
        with pytest.raises(Violation, match=r"heard|before its time"):
            checks.expired(Expire(A, cause), state)
    timeline.now = SESSION
    checks.expired(Expire(A, ExpiryCause.SILENT), state)
