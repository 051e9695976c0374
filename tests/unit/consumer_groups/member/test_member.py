"""What a member of a group does, one rule after the other."""

import pytest

from consumer_groups.assignment.partitions import Generation, MemberId
from consumer_groups.coordinator.events import (
    Beat,
    ConnectionId,
    Join,
    Leave,
    Left,
    NewCursor,
    Release,
    SetTimer,
)
from consumer_groups.cursors import CursorPosition
from consumer_groups.member.commits import CursorCommit
from consumer_groups.member.events import (
    Closed,
    CoordinatorLost,
    CoordinatorRefused,
    Ended,
    LocateCoordinator,
    Lost,
    Resumed,
    Stalled,
    StartReading,
    StoppedReading,
    StopReading,
)
from consumer_groups.member.member import CLAIMS_NAMED_MAX
from consumer_groups.member.pending_requests import ASK_AGAIN_NS_MAX, ASK_AGAIN_NS_MIN
from envelope.errors import InvalidConfig, JetstreamError, NotLeader, UnavailableError
from envelope.group_errors import IllegalGeneration, InstanceFenced, MemberFenced
from tests.support.group_membership import Members, Reader, claim, refusal, subscribed

A, B = claim(0, 1), claim(1, 1)


def a_member() -> Reader:
    """Return one that has joined and reads two partitions."""
    reader = Reader()
    reader.join(A, B)
    assert reader.reads == {A, B}
    return reader


# --- coming in ----------------------------------------------------------------------------------------


def test_a_join_is_sent_once_there_is_a_coordinator_to_send_it_to() -> None:
    reader = Reader()
    assert reader.subscribe("orders", "clicks") == [LocateCoordinator()]
    join, timer = reader.find()
    assert isinstance(join, Join)
    assert (join.client, join.request, join.member_id) == ("a", 1, None)
    assert join.streams == frozenset(("orders", "clicks"))
    assert isinstance(timer, SetTimer)
    assert timer.at == reader.now + ASK_AGAIN_NS_MIN


def test_what_is_not_answered_is_asked_again_unchanged_and_later_each_time() -> None:
    reader = Reader()
    reader.subscribe()
    join = reader.find()[0]
    pauses = []
    for _ in range(8):
        again, timer = reader.tick()
        assert again == join
        assert isinstance(timer, SetTimer)
        pauses.append(timer.at - reader.now)
    assert pauses[:3] == [2 * ASK_AGAIN_NS_MIN, 4 * ASK_AGAIN_NS_MIN, 8 * ASK_AGAIN_NS_MIN]
    assert pauses[-1] == ASK_AGAIN_NS_MAX


def test_a_member_reads_what_it_is_granted_and_asks_no_more() -> None:
    reader = Reader()
    reader.subscribe()
    reader.find()
    assert reader.give(reader.joined(A)) == [StartReading((A,))]
    assert reader.tick() == []
    assert reader.machine.rests


def test_an_answer_to_an_earlier_join_is_left_out() -> None:
    reader = Reader()
    reader.subscribe()
    reader.find()
    reader.subscribe("clicks")
    assert reader.give(reader.joined(A, request=1)) == []
    assert reader.machine.member_id is None
    assert reader.give(reader.joined(A, request=2)) == [StartReading((A,))]


def test_another_subscription_is_another_join_of_the_same_member() -> None:
    reader = a_member()
    join = reader.subscribe("clicks")[0]
    assert isinstance(join, Join)
    assert (join.request, join.member_id, join.streams) == (2, "a.1", frozenset(("clicks",)))
    assert reader.reads == {A, B}


def test_a_coordinator_that_is_lost_is_looked_for_and_asked_what_the_other_did_not_answer() -> None:
    reader = Reader()
    reader.subscribe()
    join = reader.find()[0]
    assert reader.give(CoordinatorLost(reader.connection)) == [LocateCoordinator()]
    assert reader.give(CoordinatorLost(reader.connection)) == []
    assert reader.tick() == []
    assert reader.find()[0] == join


def test_the_end_of_an_earlier_connection_changes_nothing() -> None:
    reader = a_member()
    assert reader.give(CoordinatorLost(ConnectionId("earlier"))) == []


def test_a_coordinator_is_looked_for_once_at_a_time() -> None:
    reader = Reader()
    assert reader.subscribe() == [LocateCoordinator()]
    assert reader.subscribe("clicks") == []


def test_what_is_new_is_asked_again_soon_however_long_the_last_question_took() -> None:
    reader = Reader()
    reader.subscribe()
    reader.find()
    for _ in range(5):
        reader.tick()
    reader.give(reader.joined())
    reader.tick()
    timer = reader.subscribe("clicks")[-1]
    assert isinstance(timer, SetTimer)
    assert timer.at == reader.now + ASK_AGAIN_NS_MIN


def test_a_group_that_can_have_no_coordinator_ends_its_member() -> None:
    reader = Reader()
    reader.subscribe()
    why = refusal(InvalidConfig)
    assert reader.give(CoordinatorRefused(why)) == [Ended(why)]
    assert reader.find() == []


# --- assignments --------------------------------------------------------------------------------------


def test_what_a_member_keeps_it_goes_on_reading_and_what_is_new_it_reads_too() -> None:
    reader = a_member()
    assert reader.assigned(2, A, B, claim(2, 2)) == [StartReading((claim(2, 2),))]
    assert reader.assigned(2, A, B, claim(2, 2)) == []


def test_an_assignment_of_an_older_generation_is_left_out() -> None:
    reader = a_member()
    reader.assigned(5, A, B)
    assert reader.assigned(4, A) == []
    assert reader.machine.beat is not None
    assert reader.machine.beat.generation == 5


def test_an_assignment_of_another_member_is_left_out() -> None:
    reader = a_member()
    assert reader.assigned(9, member="a.2") == []
    assert reader.machine.heard == 1


def test_what_is_to_be_given_up_is_released_only_once_it_has_stopped() -> None:
    reader = a_member()
    assert reader.assigned(2, A, gives_up=(B,)) == [StopReading((B,))]
    assert reader.assigned(3, A, gives_up=(B,)) == []
    release = reader.stopped()[0]
    assert isinstance(release, Release)
    assert (release.member_id, release.claims) == ("a.1", (B,))
    assert reader.tick()[0] == release


def test_a_release_is_repeated_until_no_assignment_names_it() -> None:
    reader = a_member()
    reader.assigned(2, A, gives_up=(B,))
    reader.stopped()
    reader.assigned(3, A, gives_up=(B,))
    assert isinstance(reader.tick()[0], Release)
    assert reader.assigned(4, A) == []
    assert reader.tick() == []
    assert reader.reads == {A}


def test_one_partition_after_the_other_is_given_up() -> None:
    reader = a_member()
    reader.assigned(2, gives_up=(A, B))
    release = reader.stopped(A)[0]
    assert isinstance(release, Release)
    assert release.claims == (A,)


def test_what_stops_unasked_is_not_released() -> None:
    reader = a_member()
    assert reader.give(StoppedReading((A,))) == []
    assert reader.assigned(2, B, gives_up=(A,)) == [StopReading((A,))]


def test_what_has_stopped_and_is_to_be_kept_again_is_released_all_the_same() -> None:
    reader = a_member()
    reader.assigned(2, A, gives_up=(B,))
    assert reader.assigned(3, A, B) == []
    release = reader.stopped()[0]
    assert isinstance(release, Release)
    assert release.claims == (B,)
    anew = claim(1, 4)
    assert reader.assigned(4, A, anew) == [StartReading((anew,))]


def test_what_is_to_be_given_up_before_it_was_heard_of_is_never_read() -> None:
    reader = a_member()
    release = reader.assigned(3, A, B, gives_up=(claim(2, 2),))[0]
    assert isinstance(release, Release)
    assert release.claims == (claim(2, 2),)


def test_what_is_gone_without_having_been_given_up_is_lost() -> None:
    reader = a_member()
    anew = claim(0, 3)
    assert reader.assigned(3, anew) == [Lost((A, B)), StartReading((anew,))]


def test_more_than_a_request_carries_is_released_by_the_next_one() -> None:
    reader = Reader()
    claims = [claim(number, 1) for number in range(CLAIMS_NAMED_MAX + 7)]
    reader.join(*claims)
    reader.assigned(2, gives_up=tuple(claims))
    first = reader.stopped()[0]
    assert isinstance(first, Release)
    assert len(first.claims) == CLAIMS_NAMED_MAX
    rest = tuple(sorted(set(claims) - set(first.claims)))
    reader.assigned(3, gives_up=rest)
    second = reader.tick()[0]
    assert isinstance(second, Release)
    assert second.claims == rest


# --- being put out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [MemberFenced, IllegalGeneration])
def test_who_was_put_out_drops_everything_and_comes_in_anew_saying_what_it_had(
    error: type[JetstreamError],
) -> None:
    reader = a_member()
    reader.assigned(2, A, gives_up=(B,))
    lost, join = reader.refused(error)
    assert isinstance(lost, Lost)
    assert set(lost.claims) == {A, B}
    assert isinstance(join, Join)
    assert (join.request, join.member_id, join.owned) == (2, None, (A, B))
    assert reader.machine.beat is None


def test_a_refusal_of_a_former_membership_is_left_out() -> None:
    reader = a_member()
    assert reader.refused(MemberFenced, member="a.0") == []


def test_who_is_put_out_again_before_it_got_anything_still_says_what_it_had() -> None:
    reader = a_member()
    reader.refused(MemberFenced)
    reader.give(reader.joined(generation=7, request=2))
    join = reader.refused(MemberFenced, member="a.2")[0]
    assert isinstance(join, Join)
    assert (join.request, join.owned) == (3, (A, B))


def test_a_place_that_another_process_has_taken_is_the_end() -> None:
    reader = a_member()
    lost, ended = reader.refused(InstanceFenced)
    assert lost == Lost((A, B))
    assert ended == Ended(refusal(InstanceFenced))
    assert reader.subscribe() == []


def test_a_node_that_coordinates_no_more_is_lost_without_losing_what_is_read() -> None:
    reader = a_member()
    assert reader.refused(NotLeader) == [LocateCoordinator()]
    assert reader.reads == {A, B}


def test_what_may_succeed_later_changes_nothing() -> None:
    reader = a_member()
    assert reader.refused(UnavailableError) == []
    assert reader.machine.member_id == "a.1"


# --- going --------------------------------------------------------------------------------------------


def test_who_closes_commits_first_and_then_leaves() -> None:
    reader = a_member()
    assert reader.give(Closed()) == [StopReading((A, B))]
    beat = reader.machine.beat
    assert beat == Beat(MemberId("a.1"), Generation(1))
    assert reader.stopped(A) == []
    leave = reader.stopped(B)[0]
    assert leave == Leave(reader.connection, MemberId("a.1"))
    assert reader.machine.beat is None
    assert reader.tick()[0] == leave
    assert reader.give(Left(reader.connection, MemberId("a.1"))) == [Ended()]


def test_who_closes_before_it_has_joined_leaves_once_it_has() -> None:
    reader = Reader()
    reader.subscribe()
    join = reader.find()[0]
    assert reader.give(Closed()) == []
    assert reader.tick()[0] == join
    (leave,) = reader.give(reader.joined(A))
    assert isinstance(leave, Leave)
    assert not reader.reads


def test_who_closes_before_it_was_heard_of_is_gone_at_once() -> None:
    reader = Reader()
    reader.subscribe()
    assert reader.give(Closed()) == [Ended()]


def test_who_is_put_out_while_it_leaves_is_content() -> None:
    reader = a_member()
    reader.give(Closed())
    assert reader.refused(MemberFenced) == [Lost((A, B)), Ended()]


def test_who_is_stuck_leaves_without_a_commit_and_comes_back() -> None:
    reader = a_member()
    lost, leave = reader.give(Stalled())
    assert lost == Lost((A, B))
    assert isinstance(leave, Leave)
    assert reader.give(Left(reader.connection, MemberId("a.1"))) == []
    join = reader.give(Resumed())[0]
    assert isinstance(join, Join)
    assert (join.request, join.member_id) == (2, None)


def test_who_comes_back_before_it_was_heard_to_leave_joins_after_that() -> None:
    reader = a_member()
    reader.give(Stalled())
    assert reader.give(Resumed()) == []
    assert isinstance(reader.give(Left(reader.connection, MemberId("a.1")))[0], Join)


def test_what_is_told_of_a_membership_that_was_left_starts_nothing() -> None:
    reader = a_member()
    reader.give(Stalled())
    reader.give(Resumed())
    assert reader.assigned(2, A, B) == []


# --- committing ---------------------------------------------------------------------------------------


def test_commits_are_numbered_and_say_what_was_heard() -> None:
    reader = a_member()
    reader.assigned(4, A, B)
    commit = CursorCommit(((A, CursorPosition(7)),), goes_back=True)
    first, second = (reader.machine.commit(commit) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.request, second.request) == (1, 2)
    assert (first.member_id, first.generation) == ("a.1", 4)
    assert (first.cursors, first.is_reset) == ((NewCursor(A.partition, CursorPosition(7)),), True)


def test_who_is_no_member_has_nothing_to_commit() -> None:
    reader = Reader()
    reader.subscribe()
    assert reader.machine.commit(CursorCommit(((A, CursorPosition(7)),), goes_back=False)) is None


# --- with a coordinator -------------------------------------------------------------------------------


def test_two_members_share_the_partitions_and_one_that_leaves_hands_them_over() -> None:
    a, b = Reader("a"), Reader("b")
    group = Members(a, b)
    for reader in (a, b):
        group.give(reader, subscribed())
    group.settle()
    assert (len(a.reads), len(b.reads)) == (2, 2)
    group.give(a, Closed())
    group.settle()
    assert a.ended == Ended()
    assert len(b.reads) == 4
