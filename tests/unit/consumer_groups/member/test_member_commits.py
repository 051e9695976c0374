"""What is committed next, and what follows when it is not."""

import pytest

from consumer_groups.assignment.partitions import Claim
from consumer_groups.cursors import Place
from consumer_groups.member.commits import Commit, Commits, Consequence, consequence_of
from envelope.errors import ConnectionLost, JetstreamError, NotEnoughReplicas, NotLeader
from envelope.group_errors import CursorBehind, IllegalGeneration, MemberFenced, PartitionNotOwned
from tests.support.group_membership import claim

A, B = claim(0, 1), claim(1, 1)


def commits(**stored: Place | None) -> Commits:
    found = Commits()
    for name, place in stored.items():
        found.begin({"a": A, "b": B}[name], place)
    return found


def test_what_is_above_its_cursor_is_due_and_nothing_else() -> None:
    found = commits(a=Place(5), b=Place(7))
    assert found.due({A: Place(6), B: Place(7)}) == (Commit(((A, Place(6)),), goes_back=False),)


def test_where_there_is_no_cursor_any_place_is_due() -> None:
    assert commits(a=None).due({A: Place(0)}) == (Commit(((A, Place(0)),), goes_back=False),)


def test_what_was_stored_is_not_due_again() -> None:
    found = commits(a=None)
    found.has_stored(*found.due({A: Place(3, "x")}))
    assert found.stored(A) == Place(3, "x")
    assert found.due({A: Place(3, "x")}) == ()


def test_a_cursor_goes_back_only_if_that_was_said_and_then_once() -> None:
    found = commits(a=Place(5))
    assert found.due({A: Place(2)}) == ()
    found.go_back(A)
    (commit,) = found.due({A: Place(2)})
    assert commit == Commit(((A, Place(2)),), goes_back=True)
    found.has_stored(commit)
    assert found.due({A: Place(1)}) == ()


def test_what_goes_back_and_what_goes_forward_are_stored_apart() -> None:
    found = commits(a=Place(5), b=Place(5))
    found.go_back(A)
    assert found.due({A: Place(2), B: Place(9)}) == (
        Commit(((B, Place(9)),), goes_back=False),
        Commit(((A, Place(2)),), goes_back=True),
    )


def test_a_lower_offset_in_another_life_of_the_stream_goes_forward() -> None:
    assert commits(a=Place(5, "old")).due({A: Place(0, "new")}) == (
        Commit(((A, Place(0, "new")),), goes_back=False),
    )
    assert commits(a=Place(5)).due({A: Place(4, "new")}) == ()


def test_nothing_is_due_for_what_is_not_read_any_more() -> None:
    found = commits(a=Place(5))
    (commit,) = found.due({A: Place(6)})
    found.forget([A])
    assert found.due({A: Place(7), B: Place(1)}) == ()
    found.has_stored(commit)
    assert found.stored(A) is None


def test_what_does_not_fit_one_request_is_several() -> None:
    claims = [claim(number, 1, "s" * 255) for number in range(300)]
    found = Commits()
    for each in claims:
        found.begin(each, None)
    several = found.due({each: Place(1, "x" * 64, "é" * 512) for each in claims})
    assert [place for commit in several for place in commit.places] == [
        (each, Place(1, "x" * 64, "é" * 512)) for each in claims
    ]
    assert {len(commit.places) for commit in several[:-1]} == {9}
    assert len(found.due({each: Place(1) for each in claims})) == 3


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        (ConnectionLost, Consequence.SEND_AGAIN),
        (NotLeader, Consequence.SEND_AGAIN),
        (NotEnoughReplicas, Consequence.SEND_AGAIN),
        (MemberFenced, Consequence.DROP),
        (PartitionNotOwned, Consequence.DROP),
        (IllegalGeneration, Consequence.DROP),
        (CursorBehind, Consequence.RAISE),
        (JetstreamError, Consequence.RAISE),
    ],
)
def test_what_follows_from_a_failure_is_that(error: type[JetstreamError], consequence: Consequence) -> None:
    assert consequence_of(error("because")) is consequence


def test_claims_of_one_partition_do_not_share_a_cursor() -> None:
    anew = Claim(A.partition, claim(0, 9).generation)
    found = commits(a=Place(5))
    found.begin(anew, Place(8))
    assert found.due({A: Place(6), anew: Place(8)}) == (Commit(((A, Place(6)),), goes_back=False),)
