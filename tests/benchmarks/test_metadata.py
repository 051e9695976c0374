"""The parts of a failover, from what one follower has seen."""

from benchmarks.metadata import Failover, _failover

MS = 1_000_000


def test_an_outage_lasts_from_the_kill_to_the_first_command_under_the_new_leader() -> None:
    leaders = [(90 * MS, "n1"), (104 * MS, None), (150 * MS, "n2"), (400 * MS, None), (500 * MS, "n1")]
    applied_at = [99 * MS, 101 * MS, 152 * MS, 153 * MS]
    failover = _failover(100 * MS, applied_at, leaders)
    assert failover == Failover(detected_ms=4.0, elected_ms=46.0, applied_ms=2.0)
    assert failover.whole_ms == 52.0
