"""Where two histories part, as tables: the cases of KIP-101, KIP-279 and the analyses of Kafka's models."""

import pytest

from envelope.types import LeaderEpoch, Offset
from jetstream.replica.reconcile import EpochEnd, Follows, LogState, StartsOver, compare, cut_point
from tests.support.reigns import log


def rounds(leader: LogState, follower: LogState) -> list[int]:
    """Cut the follower until its log is the beginning of the leader's; return where it was cut each time."""
    cuts: list[int] = []
    while len(cuts) < 20:
        answer = compare(leader, follower.epochs.last, follower.log_end_offset)
        if isinstance(answer, Follows):
            return cuts
        cut = cut_point(follower, answer) if isinstance(answer, EpochEnd) else None
        if cut is None:
            start = leader.log_start_offset if isinstance(answer, StartsOver) else Offset(0)
            follower = log(start=start, end=start)
        else:
            follower = LogState(follower.epochs.cut(cut), follower.log_start_offset, cut, cut)
        cuts.append(follower.log_end_offset)
    raise AssertionError(f"no end after {cuts}")


@pytest.mark.parametrize(
    ("leader", "follower", "cuts"),
    [
        pytest.param(log((1, 0), end=4), log((1, 0), end=4), [], id="equal"),
        pytest.param(log((1, 0), end=4), log(), [], id="empty"),
        pytest.param(log((1, 0), (2, 2), end=2), log((1, 0), end=4), [2], id="C: behind in its epoch"),
        pytest.param(
            log((1, 0), (3, 2), end=4), log((1, 0), (2, 2), end=4), [2], id="D: an epoch of its own"
        ),
        pytest.param(
            log((1, 0), (3, 2), end=5), log((1, 0), (2, 2), (4, 3), end=5), [3, 2], id="E: two forks"
        ),
        pytest.param(log((1, 0), (2, 2), end=2), log((1, 0), end=1), [], id="F: a beginning"),
        pytest.param(log((2, 0), end=3), log((1, 0), end=2), [0], id="G: nothing in common"),
        pytest.param(
            log((0 + 1, 0), (3, 1), (5, 4), (6, 6), end=6),
            log((1, 0), (2, 1), (4, 2), end=3),
            [2, 1],
            id="D3: three fast changes of the leader",
        ),
        pytest.param(
            log((1, 0), (4, 3), end=3), log((1, 0), (2, 3), end=3), [3], id="an epoch without records"
        ),
        pytest.param(
            log((1, 0), (3, 3), (5, 3), end=4), log((1, 0), (2, 3), (4, 3), end=3), [3], id="two of them"
        ),
        pytest.param(
            log((3, 5), (4, 9), start=6, end=9), log((2, 0), end=8), [6], id="an epoch no longer known"
        ),
        pytest.param(log((3, 0), start=6, end=9), log((3, 0), end=5), [6], id="ends before the start"),
        pytest.param(log((3, 0), start=6, end=9), log(start=8, end=8), [], id="empty, begun anew"),
        pytest.param(log((3, 0), start=6, end=9), log(start=10, end=10), [6], id="empty, beyond the end"),
        pytest.param(
            log((1, 0), (5, 4), end=9), log((1, 2), (3, 6), start=5, end=8), [0], id="parts before its start"
        ),
        pytest.param(
            log((1, 0), (2, 4), end=9), log((2, 4), end=12), [9], id="ahead in the leader's own epoch"
        ),
    ],
)
def test_a_few_cuts_make_the_log_the_beginning_of_the_leaders(
    leader: LogState, follower: LogState, cuts: list[int]
) -> None:
    assert rounds(leader, follower) == cuts


def test_the_answer_names_the_largest_epoch_that_is_not_above_the_followers() -> None:
    leader = log((1, 0), (3, 1), (5, 4), end=6)
    assert compare(leader, LeaderEpoch(4), Offset(3)) == EpochEnd(LeaderEpoch(3), Offset(4))
    assert compare(leader, LeaderEpoch(3), Offset(5)) == EpochEnd(LeaderEpoch(3), Offset(4))


def test_a_log_is_not_cut_inside_an_epoch_that_both_know_and_share() -> None:
    follower = log((1, 0), (4, 3), end=8)
    assert cut_point(follower, EpochEnd(LeaderEpoch(3), Offset(6))) == 3
    assert cut_point(follower, EpochEnd(LeaderEpoch(1), Offset(2))) == 2
    assert cut_point(follower, EpochEnd(LeaderEpoch(0), Offset(0))) is None
