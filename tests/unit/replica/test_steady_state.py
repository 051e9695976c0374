"""While nothing changes a leader judges without its machine, and no longer: `CheckedLeader` compares both."""

from collections.abc import Callable

import pytest

from envelope.types import MonotonicNs, Offset
from jetstream.replica.leader_events import FollowerLost, IsrRefused, ReplicasChanged, ServeFollower
from jetstream.replica.role_events import AdvanceHighWatermark
from jetstream.replica.settings import NEVER
from tests.support.reigns import Reign, proposals, steady
from tests.support.replica_cluster import LAG_MAX, START, A, B, C, D


def by_steady_state(reign: Reign, act: Callable[[], object]) -> int:
    """Return how many events of ``act`` were handled by the steady state."""
    before = reign.leader.steady_events
    act()
    return reign.leader.steady_events - before


def test_a_group_is_written_served_acknowledged_and_committed_in_the_steady_state() -> None:
    reign = steady(Reign())

    def group() -> None:
        served = reign.written(12, synced_end=10)
        assert [(one.follower, one.limit) for one in served if isinstance(one, ServeFollower)] == [
            (B, 12),
            (C, 12),
        ]
        assert reign.written(12) == ()
        assert reign.fetch(B, 12, last=7) == ()
        assert reign.fetch(C, 12, last=7) == (AdvanceHighWatermark(Offset(12)),)

    assert by_steady_state(reign, group) == 4
    assert reign.high_watermark == 12


def test_a_read_replica_is_served_in_the_steady_state_and_never_counted() -> None:
    reign = steady(Reign())
    reign.fetch(D)
    assert by_steady_state(reign, lambda: reign.fetch(D, last=7)) == 1
    assert by_steady_state(reign, lambda: reign.written(12)) == 1
    assert reign.high_watermark == 10


@pytest.mark.parametrize(
    "said", [{"node_epoch": 2}, {"epoch": 8}, {"last": 5}, {"log_end": 11}], ids=lambda said: next(iter(said))
)
def test_a_fetch_that_may_change_more_than_ends_is_for_the_machine(said: dict[str, int]) -> None:
    reign = steady(Reign())
    assert by_steady_state(reign, lambda: reign.fetch(B, **{"last": 7, **said})) == 0


def test_the_steady_state_ends_with_the_lease() -> None:
    reign = steady(Reign(lease_until=START + 10))
    assert by_steady_state(reign, lambda: reign.after(9).written(11)) == 1
    assert by_steady_state(reign, lambda: reign.after(1).written(12)) == 0
    reign.lease.until = MonotonicNs(NEVER)
    assert by_steady_state(reign, lambda: reign.written(13)) == 0, "the machine has to see it first"
    assert by_steady_state(reign, lambda: reign.written(14)) == 1


def test_the_steady_state_ends_when_somebody_may_lag() -> None:
    reign = steady(Reign())
    reign.written(12)
    assert by_steady_state(reign, lambda: reign.after(LAG_MAX - 1).fetch(B, 12, last=7)) == 1
    assert proposals(reign.after(1).written(13)), "C still lacks what was written first"
    assert by_steady_state(reign, lambda: reign.written(14)) == 0, "the proposal is not decided"


def test_the_steady_state_ends_when_a_follower_is_lost_and_begins_again_without_it() -> None:
    reign = steady(Reign())
    reign.give(FollowerLost(C))
    assert by_steady_state(reign, lambda: reign.written(11)) == 0
    reign.give(ReplicasChanged((A, B, C), (A, B), 2, (D,)))
    assert by_steady_state(reign, lambda: reign.written(12)) == 1
    assert by_steady_state(reign, lambda: reign.fetch(B, 12, last=7)) == 1
    assert reign.high_watermark == 12
    assert by_steady_state(reign, lambda: reign.fetch(C, last=7)) == 0, "it may join"


def test_there_is_no_steady_state_while_a_refused_proposal_is_to_be_made_again() -> None:
    reign = steady(Reign())
    reign.give(FollowerLost(C))
    reign.give(IsrRefused(1, version_moved=False))
    assert by_steady_state(reign, lambda: reign.written(11)) == 0
