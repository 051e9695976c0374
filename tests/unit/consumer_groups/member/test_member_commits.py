"""What is committed next, and what follows when it is not."""

import pytest

from consumer_groups.assignment.partitions import Claim
from consumer_groups.cursors import CursorPosition
from consumer_groups.member.commits import CommitFailureEffect, CursorCommit, MemberCommits, failure_effect
from envelope.errors import ConnectionLost, JetstreamError, NotEnoughReplicas, NotLeader
from envelope.group_errors import CursorBehind, IllegalGeneration, MemberFenced, PartitionNotOwned
from tests.support.group_membership import claim

A, B = claim(0, 1), claim(1, 1)


def commits(**stored: CursorPosition | None) -> MemberCommits:
    found = MemberCommits()
    for name, place in stored.items():
        found.begin({"a": A, "b": B}[name], place)
    return found


def test_what_is_above_its_cursor_is_due_and_nothing_else() -> None:
    found = commits(a=CursorPosition(5), b=CursorPosition(7))
    assert found.due({A: CursorPosition(6), B: CursorPosition(7)}) == (
        CursorCommit(((A, CursorPosition(6)),), goes_back=False),
    )


def test_where_there_is_no_cursor_any_place_is_due() -> None:
    assert commits(a=None).due({A: CursorPosition(0)}) == (
        CursorCommit(((A, CursorPosition(0)),), goes_back=False),
    )


def test_what_was_stored_is_not_due_again() -> None:
    found = commits(a=None)
    found.has_stored(*found.due({A: CursorPosition(3, "x")}))
    assert found.stored(A) == CursorPosition(3, "x")
    assert found.due({A: CursorPosition(3, "x")}) == ()


def test_a_cursor_goes_back_only_if_that_was_said_and_then_once() -> None:
    found = commits(a=CursorPosition(5))
    assert found.due({A: CursorPosition(2)}) == ()
    found.go_back(A)
    (commit,) = found.due({A: CursorPosition(2)})
    assert commit == CursorCommit(((A, CursorPosition(2)),), goes_back=True)
    found.has_stored(commit)
    assert found.due({A: CursorPosition(1)}) == ()


def test_what_goes_back_and_what_goes_forward_are_stored_apart() -> None:
    found = commits(a=CursorPosition(5), b=CursorPosition(5))
    found.go_back(A)
    assert found.due({A: CursorPosition(2), B: CursorPosition(9)}) == (
        CursorCommit(((B, CursorPosition(9)),), goes_back=False),
        CursorCommit(((A, CursorPosition(2)),), goes_back=True),
    )


def test_a_lower_offset_in_another_life_of_the_stream_goes_forward() -> None:
    assert commits(a=CursorPosition(5, "old")).due({A: CursorPosition(0, "new")}) == (
        CursorCommit(((A, CursorPosition(0, "new")),), goes_back=False),
    )
    assert commits(a=CursorPosition(5)).due({A: CursorPosition(4, "new")}) == ()


def test_nothing_is_due_for_what_is_not_read_any_more() -> None:
    found = commits(a=CursorPosition(5))
    (commit,) = found.due({A: CursorPosition(6)})
    found.forget([A])
    assert found.due({A: CursorPosition(7), B: CursorPosition(1)}) == ()
    found.has_stored(commit)
    assert found.stored(A) is None


def test_what_does_not_fit_one_request_is_several() -> None:
    claims = [claim(number, 1, "s" * 255) for number in range(300)]
    found = MemberCommits()
    for each in claims:
        found.begin(each, None)
    several = found.due({each: CursorPosition(1, "x" * 64, "é" * 512) for each in claims})
    assert [place for commit in several for place in commit.places] == [
        (each, CursorPosition(1, "x" * 64, "é" * 512)) for each in claims
    ]
    assert {len(commit.places) for commit in several[:-1]} == {9}
    assert len(found.due({each: CursorPosition(1) for each in claims})) == 3


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (ConnectionLost, CommitFailureEffect.SEND_AGAIN),
        (NotLeader, CommitFailureEffect.SEND_AGAIN),
        (NotEnoughReplicas, CommitFailureEffect.SEND_AGAIN),
        (MemberFenced, CommitFailureEffect.DROP),
        (PartitionNotOwned, CommitFailureEffect.DROP),
        (IllegalGeneration, CommitFailureEffect.DROP),
        (CursorBehind, CommitFailureEffect.RAISE),
        (JetstreamError, CommitFailureEffect.RAISE),
    ],
)
def test_what_follows_from_a_failure_is_that(
    error: type[JetstreamError], consequence: CommitFailureEffect
) -> None:
    assert failure_effect(error("because")) is consequence


def test_claims_of_one_partition_do_not_share_a_cursor() -> None:
    anew = Claim(A.partition, claim(0, 9).generation)
    found = commits(a=CursorPosition(5))
    found.begin(anew, CursorPosition(8))
    assert found.due({A: CursorPosition(6), anew: CursorPosition(8)}) == (
        CursorCommit(((A, CursorPosition(6)),), goes_back=False),
    )


def test_a_commit_that_goes_back_unsaid_is_a_bug() -> None:
    found = commits(a=CursorPosition(5))
    with pytest.raises(AssertionError, match="M4"):
        found.has_stored(CursorCommit(((A, CursorPosition(4)),), goes_back=False))
