"""What a follower does when a log lacks tombstones that the other log has not got past."""

from dataclasses import replace

import pytest

from envelope.types import LeaderEpoch, Offset
from jetstream.replica.follower_events import (
    LogCut,
    LogSynced,
    LogWritten,
    ResetLog,
)
from jetstream.replica.wire import BatchesMessage
from tests.support.following import EPOCH, LOG, Following, fetch
from tests.support.reigns import log


def without_tombstones(base: int, end: int, purged_end: int, log_start: int = 0) -> BatchesMessage:
    """An answer of a leader in whose log tombstones below ``purged_end`` may be missing."""
    begins = ((EPOCH, Offset(base)),) if end > base else ()
    return BatchesMessage(
        leader_epoch=EPOCH,
        last_epoch=LeaderEpoch(5),
        base=Offset(base),
        next=Offset(end),
        high_watermark=Offset(30),
        log_start_offset=Offset(log_start),
        purged_end=Offset(purged_end),
        epochs=begins,
    )


@pytest.mark.parametrize("end", [10, 12])
def test_a_log_that_may_hold_what_missing_tombstones_deleted_is_copied_anew(end: int) -> None:
    following = Following(known=8)
    assert following.give(without_tombstones(10, end, 11, log_start=2)) == (ResetLog(Offset(2), Offset(11)),)
    assert following.follower.high_watermark == 2, "and nothing is reported as lost"
    begun = replace(log(start=2, end=2), purged_end=Offset(11))
    assert following.give(LogCut(begun)) == (fetch(0, 2, known=2),)
    # From a log that lacks tombstones up to the very same place it copies, also below it.
    answer = replace(without_tombstones(2, 6, 11), last_epoch=LeaderEpoch(0))
    assert following.give(answer)[0] == answer


def test_a_log_that_has_got_past_the_missing_tombstones_goes_on() -> None:
    following = Following(known=8)
    answer = without_tombstones(10, 12, 10)
    assert following.give(answer)[0] == answer


@pytest.mark.parametrize("purged_end", [0, 9, 11, 21])
def test_a_copy_that_was_begun_from_another_log_begins_anew(purged_end: int) -> None:
    following = Following(replace(LOG, purged_end=Offset(20)))
    reset = ResetLog(Offset(0), Offset(purged_end))
    assert following.give(without_tombstones(10, 12, purged_end)) == (reset,)


def test_what_the_leader_says_of_publishers_goes_into_the_log_that_begins_anew() -> None:
    answer = replace(without_tombstones(10, 10, 11), note=b"note")
    assert Following().give(answer) == (ResetLog(Offset(0), Offset(11), b"note"),)


def test_an_own_log_without_some_tombstones_goes_on_behind_them() -> None:
    following = Following(replace(LOG, purged_end=Offset(10)))
    answer = without_tombstones(10, 12, 3)
    assert following.give(answer)[0] == answer


def test_a_copy_stays_one_of_a_log_without_tombstones_while_it_is_written_and_synced() -> None:
    following = Following(replace(LOG, purged_end=Offset(20)))
    first = without_tombstones(10, 12, 20)
    second, third = (replace(without_tombstones(base, base + 2, 20), last_epoch=EPOCH) for base in (12, 14))
    assert following.give(first)[0] == first
    assert following.give(second)[0] == second
    following.give(LogWritten(Offset(14)))
    following.give(LogSynced(Offset(14)))
    assert following.give(third)[0] == third
