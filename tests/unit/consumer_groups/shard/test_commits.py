"""What is committed for a group: in which order, what may go back, what comes too late, who sees it."""

import pytest

from consumer_groups.assignment.partitions import Claim, MemberId, Partition
from consumer_groups.coordinator.events import Assignment, NewCursor
from consumer_groups.cursors import CURSOR_OFFSET_MAX, CursorPosition
from consumer_groups.shard import commits
from consumer_groups.shard.events import CursorsCommitted, DeleteGroup, Done, ResetCursors
from envelope.errors import InvalidCursor, JetstreamError, LimitReached, NotEnoughReplicas
from envelope.group_errors import CursorBehind, IllegalGeneration, MemberFenced, PartitionNotOwned
from envelope.limits import CURSOR_METADATA_BYTES_MAX
from envelope.types import StreamName
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

DONE = CursorsCommitted()


def one_member() -> ShardAtWork:
    """Return a shard with a group in which ``a.1`` owns four partitions since generation 1."""
    work = ShardAtWork()
    work.join("a")
    return work


# --- in order ---------------------------------------------------------------------------------------------


def test_commits_are_written_one_behind_the_other_and_answered_once_they_are_durable() -> None:
    work = one_member()
    questions = [work.ask(committing("a.1", *cursors(each), request=each)) for each in (1, 2, 3)]
    assert len(work.writes) == 3
    assert not set(questions) & work.answers.keys()
    work.commit(2)
    assert [work.answers.get(question) for question in questions] == [DONE, DONE, None]
    assert work.fetched() == [2]
    work.commit()
    assert work.answers[questions[2]] == DONE
    assert work.fetched() == [3]
    audit(work)


def test_a_stored_cursor_has_what_was_said_and_when_it_was_taken() -> None:
    work = one_member()
    place = CursorPosition(7, "1f0c-9", "\u00e9")
    work.answer(CursorsCommitted, committing("a.1", NewCursor(orders(2), place)))
    cursor = work.table.cursor(READERS, orders(2))
    assert cursor is not None
    assert (cursor.place, cursor.generation, cursor.committed_at) == (place, 1, len(work.log) - 1)
    audit(work)


def test_a_commit_of_who_may_not_is_refused_and_nothing_of_it_is_written() -> None:
    work = two_members()
    for wrong, error in (
        (committing("c.1", *cursors(1), generation=3), MemberFenced),
        (committing("a.1", *cursors(1, 1, 1), generation=3), PartitionNotOwned),
        (committing("a.1", *cursors(1), generation=4), IllegalGeneration),
        (committing("b.1", NewCursor(orders(2), CursorPosition(1)), generation=2), IllegalGeneration),
    ):
        assert type(work.error(wrong)) is error
    assert work.fetched() == []
    assert type(work.error(committing("a.1", *cursors(1)), "none")) is MemberFenced


@pytest.mark.parametrize(
    "wrong",
    [
        (),
        (*cursors(1), *cursors(2)),
        cursors(-1),
        cursors(CURSOR_OFFSET_MAX + 1),
        cursors(1, incarnation="a b"),
        (NewCursor(orders(0), CursorPosition(1, metadata="x" * (CURSOR_METADATA_BYTES_MAX + 1))),),
        (NewCursor(orders(0), CursorPosition(1, metadata="\ud800")),),
    ],
)
def test_what_is_no_cursor_is_refused_whoever_asks(wrong: tuple[NewCursor, ...]) -> None:
    work = one_member()
    assert type(work.error(committing("a.1", *wrong))) is InvalidCursor
    assert type(work.error(ResetCursors(wrong, force=True))) is InvalidCursor
    assert work.state().members.keys() == {"a.1"}
    assert work.answer(CursorsCommitted, committing("a.1", *cursors(1))) == DONE


def test_an_operator_cannot_set_a_cursor_where_there_can_be_no_partition() -> None:
    work = ShardAtWork()
    for where in (Partition(StreamName("a.b"), 0), orders(-1), orders(10**6)):
        error = work.error(ResetCursors((NewCursor(where, CursorPosition(1)),)))
        assert error.err_code in {"invalid_name", "invalid_cursor"}
    assert work.shard.groups == 0


# --- going back -------------------------------------------------------------------------------------------


def test_a_commit_that_would_go_back_is_refused_for_all_of_its_cursors() -> None:
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(10, 20)))
    error = work.error(committing("a.1", *cursors(11, 19), request=2))
    assert type(error) is CursorBehind
    assert error.detail == {"partition": "orders[1]", "offset": 20}
    assert work.fetched() == [10, 20]
    work.answer(CursorsCommitted, committing("a.1", *cursors(10, 20), request=3))


def test_a_commit_is_measured_against_those_whose_write_is_under_way() -> None:
    work = one_member()
    first, second = (work.ask(committing("a.1", *cursors(at), request=at)) for at in (10, 9))
    behind = work.ask(committing("a.1", *cursors(8), request=11))
    assert work.failure(behind) is CursorBehind
    work.commit()
    assert work.answers[first] == DONE
    assert work.answers[second] == CursorsCommitted(superseded=True)
    assert work.fetched() == [10]


def test_a_commit_that_is_stored_does_not_hide_one_that_is_still_under_way() -> None:
    work = one_member()
    for request in (1, 2):
        work.ask(committing("a.1", *cursors(10 * request), request=request))
    work.commit(1)
    behind = work.ask(committing("a.1", *cursors(15), request=3))
    assert work.failure(behind) is CursorBehind
    work.commit()
    assert work.fetched() == [20]


def test_a_reset_may_go_back_and_what_comes_after_it_goes_on_from_there() -> None:
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(100)))
    reset = work.ask(committing("a.1", *cursors(10), request=2, is_reset=True))
    after = work.ask(committing("a.1", *cursors(20), request=3))
    assert len(work.writes) == 1, "a commit that goes back goes alone"
    work.commit()
    assert [work.answers[reset], work.answers[after]] == [DONE, DONE]
    assert work.fetched() == [20]
    audit(work)


def test_what_comes_after_a_reset_that_was_refused_does_not_go_back() -> None:
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(100)))
    reset = work.ask(committing("a.1", *cursors(10), request=2, is_reset=True))
    after = work.ask(committing("a.1", *cursors(20), request=3))
    work.refuse()
    assert work.failure(reset) is NotEnoughReplicas
    assert work.failure(after) is CursorBehind
    assert work.fetched() == [100]


def test_a_reset_is_right_whatever_becomes_of_what_is_under_way() -> None:
    work = one_member()
    ahead = work.ask(committing("a.1", *cursors(100)))
    reset = work.ask(committing("a.1", *cursors(10), request=2, is_reset=True))
    assert len(work.writes) == 2
    work.refuse()
    work.commit()
    assert work.failure(ahead) is NotEnoughReplicas
    assert work.answers[reset] == DONE
    assert work.fetched() == [10]


def test_a_cursor_of_another_incarnation_may_be_below() -> None:
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(100, incarnation="one")))
    work.answer(CursorsCommitted, committing("a.1", *cursors(5, incarnation="two"), request=2))
    assert work.fetched() == [5]
    for request, incarnation in ((3, None), (4, "two")):
        error = work.error(committing("a.1", *cursors(4, incarnation=incarnation), request=request))
        assert type(error) is CursorBehind
    work.answer(CursorsCommitted, committing("a.1", *cursors(6), request=5))
    assert type(work.error(committing("a.1", *cursors(1, incarnation="one"), request=6))) is CursorBehind


def test_a_cursor_of_another_incarnation_is_measured_against_what_is_durable() -> None:
    """What is under way names an incarnation, and is refused; what is durable names none."""
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(100)))
    ahead = work.ask(committing("a.1", *cursors(120, incarnation="one"), request=2))
    other = work.ask(committing("a.1", *cursors(50, incarnation="two"), request=3))
    assert len(work.writes) == 1
    work.refuse()
    work.commit()
    assert [work.failure(ahead), work.failure(other)] == [NotEnoughReplicas, CursorBehind]
    assert work.fetched() == [100]


def test_a_commit_that_is_refused_leaves_those_behind_it_as_they_are() -> None:
    work = one_member()
    questions = [work.ask(committing("a.1", *cursors(each), request=each)) for each in (1, 2, 3)]
    work.refuse()
    work.commit(1)
    work.refuse()
    assert work.failure(questions[0]) is work.failure(questions[2]) is NotEnoughReplicas
    assert work.answers[questions[1]] == DONE
    assert work.fetched() == [2]
    assert type(work.error(committing("a.1", *cursors(1), request=4))) is CursorBehind
    work.answer(CursorsCommitted, committing("a.1", *cursors(3), request=5))
    audit(work)


# --- what comes too late ----------------------------------------------------------------------------------


def test_a_commit_that_comes_after_a_later_one_is_answered_with_it_and_writes_nothing() -> None:
    work = one_member()
    later = work.ask(committing("a.1", *cursors(2), request=2))
    late = work.ask(committing("a.1", NewCursor(orders(1), CursorPosition(1)), request=1))
    assert len(work.writes) == 1
    assert late not in work.answers
    work.commit()
    assert [work.answers[later], work.answers[late]] == [DONE, CursorsCommitted(superseded=True)]
    assert work.fetched() == [2]


def test_a_commit_that_comes_after_a_later_one_that_is_durable_is_answered_at_once() -> None:
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(2), request=2))
    late = work.ask(committing("a.1", *cursors(1), request=1, is_reset=True))
    assert work.answers[late] == CursorsCommitted(superseded=True)
    assert not work.writes


def test_a_commit_that_is_sent_again_is_written_again() -> None:
    work = one_member()
    twice = [work.ask(committing("a.1", *cursors(2), request=2)) for _ in range(2)]
    work.commit()
    assert [work.answers[question] for question in twice] == [DONE, DONE]
    assert work.answer(CursorsCommitted, committing("a.1", *cursors(2), request=2)) == DONE


def test_what_was_superseded_by_a_commit_that_is_refused_is_told_so_and_counts_again() -> None:
    work = one_member()
    questions = [work.ask(committing("a.1", *cursors(each), request=each)) for each in (2, 1)]
    work.refuse()
    assert [work.failure(question) for question in questions] == [NotEnoughReplicas] * 2
    assert work.answer(CursorsCommitted, committing("a.1", *cursors(1), request=1)) == DONE
    assert work.fetched() == [1]


def test_a_later_commit_that_went_back_in_vain_supersedes_nothing() -> None:
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(10), request=1))
    assert type(work.error(committing("a.1", *cursors(9), request=3))) is CursorBehind
    assert work.answer(CursorsCommitted, committing("a.1", *cursors(11), request=2)) == DONE


# --- who comes next ---------------------------------------------------------------------------------------


def given_up(work: ShardAtWork) -> tuple[Claim, ...]:
    """Let ``b`` join; return what ``a.1`` is to give up: partitions 2 and 3."""
    work.join("b")
    return work.state().shares()[MemberId("a.1")].gives_up


def test_who_hears_of_a_grant_sees_all_that_the_former_owner_was_answered_for() -> None:
    work = one_member()
    claims = given_up(work)
    last = work.ask(committing("a.1", NewCursor(orders(2), CursorPosition(42)), generation=2))
    released = work.release("a.1", claims)
    granted = work.beat("b.1", generation=2, wait=SECOND)
    assert [len(write.records) for write in work.writes] == [1, 1]
    work.commit(1)
    assert work.answers[last] == DONE
    assert not {released, granted} & work.answers.keys()
    work.commit()
    ((_, assignment),) = work.news(granted).assignments
    assert [claim.partition for claim in assignment.keeps] == [orders(2), orders(3)]
    assert work.fetched(orders(2)) == [42]


def test_a_commit_behind_the_release_is_refused() -> None:
    work = one_member()
    claims = given_up(work)
    work.release("a.1", claims)
    late = work.ask(committing("a.1", NewCursor(orders(2), CursorPosition(42)), generation=2))
    work.commit()
    assert work.failure(late) is PartitionNotOwned


def test_a_commit_whose_write_is_refused_is_not_seen_by_who_comes_next() -> None:
    work = one_member()
    claims = given_up(work)
    lost = work.ask(committing("a.1", NewCursor(orders(2), CursorPosition(42)), generation=2))
    work.release("a.1", claims)
    work.refuse()
    work.commit()
    assert work.failure(lost) is NotEnoughReplicas
    assert work.fetched() == []
    low = committing("b.1", NewCursor(orders(2), CursorPosition(1)), generation=3)
    assert work.answer(CursorsCommitted, low) == DONE


def test_requests_of_a_member_that_is_gone_are_forgotten() -> None:
    """Member ids are never used again; it is by using one that this shows."""
    work = one_member()
    work.join("b", "clicks")
    work.answer(CursorsCommitted, committing("a.1", *cursors(5), generation=2, request=5))
    work.leave("a.1")
    work.commit()
    work.answer(Assignment, joining("a", request=2, fresh_id=MemberId("a.1")))
    assert work.answer(CursorsCommitted, committing("a.1", *cursors(6), generation=4, request=1)) == DONE


# --- limits -----------------------------------------------------------------------------------------------


def refused(work: ShardAtWork, *numbers: int) -> JetstreamError:
    return work.error(
        committing("a.1", *(NewCursor(orders(each), CursorPosition(9)) for each in numbers), request=9)
    )


def test_a_group_has_so_many_cursors_those_under_way_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "GROUP_CURSORS_MAX", 3)
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(1, 1)))
    work.ask(committing("a.1", NewCursor(orders(2), CursorPosition(1)), request=2))
    late = work.ask(committing("a.1", NewCursor(orders(3), CursorPosition(1)), request=3))
    assert work.failure(late) is LimitReached
    work.commit()
    work.answer(CursorsCommitted, committing("a.1", *cursors(2, 2, 2), request=4))
    assert type(refused(work, 0, 3)) is LimitReached
    assert work.fetched() == [2, 2, 2]


def test_a_shard_has_so_many_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "SHARD_CURSORS_MAX", 2)
    work = one_member()
    work.answer(CursorsCommitted, committing("a.1", *cursors(1, 1)))
    assert type(refused(work, 1, 2)) is LimitReached
    work.answer(CursorsCommitted, committing("a.1", *cursors(2, 2), request=10))
    assert type(work.error(ResetCursors(cursors(1)), "others")) is LimitReached
    work.answer(Done, DeleteGroup(force=True))
    work.answer(Done, ResetCursors(cursors(1)), "others")
