"""How a log becomes and stays the beginning of the leader's: one rule of a follower after the other."""

import pytest

from envelope.types import LeaderEpoch, NodeId, Offset
from jetstream.replica.follower_events import (
    AppendsUndone,
    CutRefused,
    Event,
    LeaderConnected,
    LeaderDisconnected,
    LogCut,
    ReportLost,
    ResetLog,
    Truncate,
)
from jetstream.replica.role_events import AdvanceHighWatermark, LogStartMoved, Tick
from jetstream.replica.settings import NEVER, ReplicaSettings
from jetstream.replica.wire import (
    BatchesMessage,
    DivergingMessage,
    FetchRefusal,
    RefusedMessage,
    StartOverMessage,
)
from tests.support.following import EPOCH, LOG, SETTINGS, Following, diverging, fetch
from tests.support.reigns import log
from tests.support.replica_cluster import RETRY, A, B, C

TIMEOUT = SETTINGS.fetch_timeout_ns
REFUSED = RefusedMessage(EPOCH, FetchRefusal.NO_LEASE)


def batches(
    last: int, base: int, end: int, *epochs: tuple[int, int], known: int = 0, epoch: int = EPOCH
) -> BatchesMessage:
    """An answer to a log that ends at ``base`` under epoch ``last``; all of the leader's epoch by default."""
    begins = epochs or (((EPOCH, base),) if end > base else ())
    return BatchesMessage(
        leader_epoch=LeaderEpoch(epoch),
        last_epoch=LeaderEpoch(last),
        base=Offset(base),
        next=Offset(end),
        high_watermark=Offset(known),
        epochs=tuple((LeaderEpoch(first), Offset(start)) for first, start in begins),
    )


def start_over(last: int, log_end: int, log_start: int) -> StartOverMessage:
    return StartOverMessage(EPOCH, LeaderEpoch(last), Offset(log_end), Offset(log_start))


# --- whom to follow -----------------------------------------------------------------------------------


def test_a_reign_begins_with_a_fetch_that_tells_where_the_log_ends() -> None:
    assert Following().begun == (fetch(5, 10),)


def test_the_same_leader_under_a_new_epoch_is_asked_anew() -> None:
    following = Following()
    following.give(batches(5, 10, 10))
    assert following.reign(A, EPOCH + 1) == (fetch(5, 10, epoch=EPOCH + 1),)


def test_answers_of_another_reign_are_ignored() -> None:
    following = Following()
    following.reign(C, EPOCH + 1)
    for answer in (
        batches(5, 10, 12),
        batches(5, 10, 12, epoch=EPOCH + 2),
        diverging(5, 10, 3, 4),
        start_over(5, 10, 20),
    ):
        assert following.give(answer) == ()


@pytest.mark.parametrize(("leader", "epoch"), [(C, EPOCH - 1), (None, EPOCH - 1), (C, EPOCH)])
def test_news_that_is_no_news_changes_nothing(leader: NodeId | None, epoch: int) -> None:
    following = Following()
    assert following.reign(leader, epoch) == ()
    assert following.follower.leader == A


@pytest.mark.parametrize(("leader", "epoch"), [(None, EPOCH), (None, EPOCH + 1), (B, EPOCH + 1)])
def test_without_a_leader_or_as_the_leader_nothing_is_asked_for(leader: NodeId | None, epoch: int) -> None:
    following = Following()
    assert following.reign(leader, epoch) == ()
    assert following.give(batches(5, 10, 12)) == ()
    assert following.after(2 * TIMEOUT).give(Tick()) == ()
    assert following.give(LeaderDisconnected()) + following.give(LeaderConnected()) == ()
    assert following.after(2 * TIMEOUT).give(Tick()) == ()
    assert following.follower.wake_at == NEVER


def test_a_fetch_without_an_answer_is_repeated() -> None:
    following = Following()
    assert following.wakes_after == TIMEOUT
    assert following.after(TIMEOUT - 1).give(Tick()) == ()
    assert following.after(1).give(Tick()) == (fetch(5, 10),)
    assert following.give(Tick()) == ()


@pytest.mark.parametrize("event", [REFUSED, LeaderDisconnected()])
def test_a_refused_or_lost_fetch_is_repeated_later(event: Event) -> None:
    following = Following().after(RETRY // 2)
    assert following.give(event) == ()
    assert following.wakes_after == RETRY
    assert following.after(RETRY - 1).give(Tick()) == ()
    assert following.after(1).give(Tick()) == (fetch(5, 10),)


def test_a_refusal_in_another_reign_says_nothing() -> None:
    following = Following()
    following.give(RefusedMessage(LeaderEpoch(EPOCH - 1), FetchRefusal.DEPOSED))
    assert following.wakes_after == TIMEOUT


def test_over_a_new_connection_it_is_asked_at_once() -> None:
    following = Following()
    following.give(LeaderDisconnected())
    assert following.give(LeaderConnected()) == (fetch(5, 10),)
    assert following.wakes_after == TIMEOUT


def test_to_acknowledge_is_not_to_ask_and_does_not_put_off_when_that_is_repeated() -> None:
    following = Following(log((3, 0), (5, 6), end=10, synced=8))
    following.give(REFUSED)
    assert following.after(RETRY // 2).synced(10) == (fetch(5, 10, asks=False),)
    assert following.after(RETRY // 2).give(Tick()) == (fetch(5, 10),)


# --- appending ----------------------------------------------------------------------------------------


def test_what_follows_is_appended_and_more_asked_for_before_it_is_synced() -> None:
    following = Following()
    answer = batches(5, 10, 12)
    assert following.give(answer) == (answer, fetch(EPOCH, 12, 10))
    assert following.written(12) == ()
    assert following.synced(12) == (fetch(EPOCH, 12, asks=False),)
    assert following.synced(12) == ()


def test_an_answer_without_batches_is_asked_for_again() -> None:
    assert Following().give(batches(5, 10, 10)) == (fetch(5, 10),)


@pytest.mark.parametrize("answer", [batches(5, 8, 12), batches(5, 12, 14), batches(3, 10, 12)])
def test_an_answer_about_another_log_is_ignored(answer: BatchesMessage) -> None:
    following = Following()
    assert following.give(answer) == ()
    assert following.follower.log == LOG


def test_a_repeated_answer_is_appended_once() -> None:
    following = Following()
    answer = batches(5, 10, 12)
    assert answer in following.give(answer)
    assert following.give(answer) == ()


@pytest.mark.parametrize(
    "answer",
    [
        batches(5, 10, 12, (4, 10)),
        batches(5, 10, 12, (7, 10), (6, 11)),
        batches(5, 10, 12, (8, 10)),
        batches(5, 10, 12, (7, 11)),
        batches(5, 10, 12, (6, 10), (7, 12)),
        batches(5, 10, 10, (7, 10)),
        BatchesMessage(EPOCH, LeaderEpoch(5), Offset(10), Offset(12), Offset(0)),
        batches(5, 10, 9, (7, 10)),
    ],
)
def test_batches_that_cannot_follow_are_not_appended_but_asked_for_later(answer: BatchesMessage) -> None:
    following = Following()
    assert following.give(answer) == ()
    assert following.after(RETRY).give(Tick()) == (fetch(5, 10),)


def test_epochs_of_the_batches_become_part_of_the_history() -> None:
    following = Following()
    following.give(batches(5, 10, 16, (5, 10), (6, 12), (7, 14)))
    assert [(one.epoch, one.start) for one in following.follower.log.epochs.starts] == [
        (3, 0),
        (5, 6),
        (6, 12),
        (7, 14),
    ]


def test_no_more_is_asked_for_than_the_disk_can_be_behind() -> None:
    following = Following()
    following.give(batches(5, 10, 12))
    assert following.give(batches(7, 12, 14)) == (batches(7, 12, 14),)
    assert not following.follower.is_settled
    assert following.follower.wake_at == NEVER
    assert following.give(LeaderConnected()) + following.after(2 * TIMEOUT).give(Tick()) == ()
    assert following.synced(11) == (), "it is acknowledged with what is asked next"
    assert following.written(12) == (fetch(7, 14, 11),)
    assert following.written(14) == ()
    assert following.follower.is_settled


def test_what_is_written_stays_written_when_an_earlier_append_is_told_after_a_later_one() -> None:
    following = Following()
    following.give(batches(5, 10, 12))
    following.give(batches(7, 12, 14))
    following.written(14)
    following.written(12)
    assert AdvanceHighWatermark(Offset(14)) in following.give(batches(7, 14, 14, known=14))


def test_a_refused_append_is_asked_for_again_later() -> None:
    following = Following()
    following.give(batches(5, 10, 12))
    assert following.give(AppendsUndone(LOG)) == ()
    assert following.give(batches(7, 12, 14)) == ()
    assert following.after(RETRY).give(Tick()) == (fetch(5, 10),)


# --- the high watermark -------------------------------------------------------------------------------


def test_the_high_watermark_is_the_leaders_but_not_beyond_what_can_be_read_here() -> None:
    following = Following()
    answer = batches(5, 10, 14, known=12)
    assert following.give(answer)[:2] == (answer, AdvanceHighWatermark(Offset(10)))
    assert following.written(14) == (AdvanceHighWatermark(Offset(12)),)
    assert following.synced(14) == (fetch(7, 14, known=12, asks=False),)


def test_the_high_watermark_never_goes_back() -> None:
    following = Following(known=8)
    assert following.give(batches(5, 10, 10, known=6)) == (fetch(5, 10, known=8),)
    assert following.follower.high_watermark == 8


def test_what_a_leader_says_about_another_log_is_not_committed_here() -> None:
    following = Following()
    following.give(batches(5, 8, 12, known=10))
    following.give(diverging(5, 10, 5, 8))
    assert following.follower.high_watermark == 0


# --- reconciling --------------------------------------------------------------------------------------


def test_the_log_is_cut_where_the_histories_part_and_then_asked_for_more() -> None:
    following = Following()
    assert following.give(diverging(5, 10, 5, 8)) == (Truncate(Offset(8)),)
    assert following.give(LogCut(log((3, 0), (5, 6), end=8))) == (fetch(5, 8),)


def test_a_cut_that_landed_at_a_batch_before_is_where_it_goes_on() -> None:
    following = Following()
    following.give(diverging(5, 10, 5, 8))
    assert following.give(LogCut(log((3, 0), (5, 6), end=7))) == (fetch(5, 7),)


def test_an_epoch_that_only_this_log_knows_is_cut_away() -> None:
    assert Following().give(diverging(5, 10, 4, 9)) == (Truncate(Offset(6)),)


def test_an_epoch_without_records_that_only_this_log_knows_is_cut_away() -> None:
    following = Following(log((3, 0), (5, 10), end=10))
    assert following.give(diverging(5, 10, 4, 12)) == (Truncate(Offset(10)),)
    assert following.give(LogCut(log((3, 0), end=10))) == (fetch(3, 10),)


def test_the_own_high_watermark_is_no_reason_to_cut() -> None:
    following = Following(known=4)
    assert following.begun == (fetch(5, 10, known=4),)
    answer = batches(5, 10, 12)
    assert answer in following.give(answer)


def test_cutting_what_was_committed_is_loud() -> None:
    following = Following(known=9, may_lack_committed=True)
    assert following.give(diverging(5, 10, 5, 8)) == (ReportLost(Offset(8), Offset(9)), Truncate(Offset(8)))
    assert following.follower.high_watermark == 8


def test_a_log_that_shares_no_epoch_begins_anew() -> None:
    following = Following()
    assert following.give(diverging(5, 10, 2, 4)) == (ResetLog(Offset(0)),)
    assert following.give(LogCut(log())) == (fetch(0, 0),)


def test_a_log_that_parts_before_its_start_begins_anew() -> None:
    following = Following()
    following.give(LogStartMoved(Offset(7)))
    assert following.give(diverging(5, 10, 3, 6)) == (ResetLog(Offset(7)),)


def test_a_log_without_records_does_not_go_back_behind_its_start() -> None:
    # It started over at 1, led epoch 6 without a record, and acknowledged 1: it may be in the ISR.
    following = Following(log((6, 1), start=1, end=1), known=1)
    assert following.give(diverging(6, 1, 4, 1)) == (ResetLog(Offset(1)),)
    assert following.give(LogCut(log(start=1, end=1))) == (fetch(0, 1, known=1),)
    assert following.follower.high_watermark == 1


def test_a_log_that_ends_before_the_leaders_starts_begins_there_without_loss() -> None:
    following = Following(known=10)
    assert following.give(start_over(5, 10, 30)) == (ResetLog(Offset(30), note=b""),)
    assert following.give(LogCut(log(start=30, end=30))) == (fetch(0, 30, known=10),)


@pytest.mark.parametrize(
    "answer", [diverging(5, 12, 3, 4), diverging(3, 10, 3, 4), start_over(5, 9, 30), start_over(3, 10, 30)]
)
def test_what_is_said_about_another_log_cuts_nothing(answer: DivergingMessage | StartOverMessage) -> None:
    following = Following()
    assert following.give(answer) == ()
    assert following.follower.log == LOG


def test_a_late_answer_does_not_cut_what_was_appended_since() -> None:
    following = Following()
    late = diverging(5, 10, 5, 8)
    following.give(late)
    following.give(LogCut(log((3, 0), (5, 6), end=8)))
    following.give(batches(5, 8, 10))
    assert following.give(late) == ()


def test_an_answer_that_is_no_divergence_is_not_obeyed() -> None:
    following = Following()
    assert following.give(diverging(5, 10, 5, 10)) == ()
    assert following.after(RETRY).give(Tick()) == (fetch(5, 10),)


# --- while the log is being cut -----------------------------------------------------------------------


def test_what_the_disk_says_of_appends_before_a_cut_does_not_count_after_it() -> None:
    following = Following()
    following.give(batches(5, 10, 12))
    following.reign(C, EPOCH + 1)
    answer = DivergingMessage(LeaderEpoch(EPOCH + 1), EPOCH, Offset(12), LeaderEpoch(5), Offset(8))
    assert following.give(answer) == (Truncate(Offset(8)),)
    assert following.written(12) + following.synced(12) + following.give(AppendsUndone(LOG)) == ()
    assert following.give(LogCut(log((3, 0), (5, 6), end=8))) == (fetch(5, 8, epoch=EPOCH + 1),)
    assert following.follower.leader == C


@pytest.mark.parametrize("answer", [diverging(5, 10, 5, 8), start_over(5, 10, 20)])
def test_a_cut_that_the_disk_has_no_space_for_is_tried_again_later(answer: Event) -> None:
    following = Following()
    cut = following.give(answer)
    assert following.give(CutRefused(LOG)) == ()
    assert following.follower.is_settled
    assert following.after(RETRY - 1).give(Tick()) == ()
    assert following.after(1).give(Tick()) == (fetch(5, 10),)
    assert following.give(answer) == cut


def test_while_the_log_is_cut_nothing_is_asked_for_or_taken_in() -> None:
    following = Following()
    following.give(diverging(5, 10, 5, 8))
    assert not following.follower.is_settled
    quiet = following.give(batches(5, 10, 12)) + following.give(diverging(5, 10, 3, 4))
    quiet += following.give(LogStartMoved(Offset(2))) + following.after(2 * TIMEOUT).give(Tick())
    quiet += following.give(LeaderDisconnected()) + following.give(LeaderConnected())
    assert quiet + following.reign(C, EPOCH + 1) == ()
    assert following.follower.wake_at == NEVER
    assert following.give(LogCut(log((3, 0), (5, 6), end=8))) == (fetch(5, 8, epoch=EPOCH + 1),)
    assert following.follower.leader == C


def test_a_cut_that_nobody_asked_for_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="H5"):
        Following().give(LogCut(LOG))


def test_a_cut_that_leaves_the_log_as_it_was_is_our_bug() -> None:
    """An epoch without records would otherwise be asked for and cut for ever."""
    following = Following(log((3, 0), (5, 10), end=10))
    following.give(diverging(5, 10, 4, 12))
    with pytest.raises(AssertionError, match="H5"):
        following.give(LogCut(log((3, 0), (5, 10), end=10)))


def test_a_disk_that_has_synced_more_than_there_is_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="H2"):
        Following().synced(11)


def test_more_committed_than_there_is_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="H3"):
        Following(known=11)


def test_what_is_stored_is_written_and_then_synced() -> None:
    one, other = Following(), Following()
    for following in (one, other):
        following.give(batches(5, 10, 12, known=12))
    stored = one.follower.stored(Offset(12), Offset(12), one.now)
    assert stored == other.written(12) + other.synced(12)
    assert str(one.follower) == str(other.follower)


# --- asking ahead -------------------------------------------------------------------------------------

FRUGAL = ReplicaSettings(ask_ahead_records_min=3)


def test_after_few_records_it_asks_with_the_acknowledgement() -> None:
    following = Following(settings=FRUGAL)
    answer = batches(5, 10, 12)
    assert following.give(answer) == (answer,)
    assert following.written(12) == ()
    assert following.synced(12) == (fetch(EPOCH, 12),)


def test_after_many_records_it_asks_at_once_and_acknowledges_later() -> None:
    following = Following(settings=FRUGAL)
    answer = batches(5, 10, 13)
    assert following.give(answer) == (answer, fetch(EPOCH, 13, 10))
    following.written(13)
    assert following.synced(13) == (fetch(EPOCH, 13, asks=False),)


def test_after_records_that_come_alone_it_asks_with_the_acknowledgement_however_many_they_are() -> None:
    following = Following(settings=FRUGAL)
    answer = batches(5, 10, 20, known=10)
    assert following.give(answer) == (answer, AdvanceHighWatermark(Offset(10)))
    assert following.written(20) == ()
    assert following.synced(20) == (fetch(EPOCH, 20, known=10),)


@pytest.mark.parametrize("known", [8, 12], ids=["others are under way", "it is behind"])
def test_after_many_records_that_do_not_come_alone_it_asks_at_once(known: int) -> None:
    following = Following(known=8, settings=FRUGAL)
    actions = following.give(batches(5, 10, 20, known=known))
    assert actions[-1] == fetch(EPOCH, 20, 10, known=min(known, 10))


def test_what_is_owed_and_what_is_synced_are_told_at_once() -> None:
    following = Following()
    for base in (10, 12):
        following.give(batches(5 if base == 10 else EPOCH, base, base + 2))
    stored = following.follower.stored(Offset(14), Offset(14), following.now)
    assert stored == (fetch(EPOCH, 14),)


def test_an_answer_without_records_is_followed_by_a_question() -> None:
    following = Following(settings=FRUGAL)
    assert following.give(batches(5, 10, 10)) == (fetch(5, 10),)


def test_what_was_not_asked_is_asked_when_the_connection_is_back() -> None:
    following = Following(settings=FRUGAL)
    following.give(batches(5, 10, 12))
    assert following.give(LeaderConnected()) == (fetch(EPOCH, 12, 10),)
    following.written(12)
    assert following.synced(12) == (fetch(EPOCH, 12, asks=False),)
