"""The commit rule of a leader that is its own whole ISR."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import LeaderEpoch, Offset
from jetstream.replica.leader import AdvanceHighWatermark, Leader, Synced


def test_what_was_durable_before_the_epoch_is_committed_at_its_start() -> None:
    assert Leader(LeaderEpoch(3), Offset(7)).high_watermark == 7


def test_an_empty_log_has_nothing_committed() -> None:
    assert Leader(LeaderEpoch(1), Offset(0)).high_watermark == 0


def test_what_is_synced_is_committed_and_told_once() -> None:
    leader = Leader(LeaderEpoch(1), Offset(0))
    assert leader.handle(Synced(Offset(5))) == (AdvanceHighWatermark(Offset(5)),)
    assert leader.handle(Synced(Offset(5))) == ()
    assert leader.high_watermark == 5


def test_a_synced_end_that_goes_back_is_our_bug() -> None:
    leader = Leader(LeaderEpoch(1), Offset(5))
    with pytest.raises(AssertionError, match="L1"):
        leader.handle(Synced(Offset(4)))
    assert leader.high_watermark == 5


@given(st.lists(st.integers(min_value=0, max_value=3)))
def test_the_high_watermark_is_the_synced_end_and_never_decreases(steps: list[int]) -> None:
    leader = Leader(LeaderEpoch(1), Offset(0))
    synced, told = 0, [0]
    for step in steps:
        synced += step
        told += [action.high_watermark for action in leader.handle(Synced(Offset(synced)))]
        assert leader.high_watermark == synced == told[-1]
    assert told == sorted(set(told))
