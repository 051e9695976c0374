"""How long upkeep waits for the repair of damage before it writes the rest of a log anew."""

from envelope.types import MonotonicNs, Offset
from jetstream.node.maintenance.unreadable_segments import REPAIR_WAIT_NS, RepairWait


def over(wait: RepairWait, now: int, *damaged: int) -> bool:
    return wait.is_over(frozenset(map(Offset, damaged)), MonotonicNs(now))


def test_damage_is_given_time_to_be_repaired_and_new_damage_as_much() -> None:
    wait = RepairWait()
    assert over(wait, 0)
    assert not over(wait, 5, 10)
    assert not over(wait, 5 + REPAIR_WAIT_NS - 1, 10)
    assert over(wait, 5 + REPAIR_WAIT_NS, 10)
    assert not over(wait, 6 + REPAIR_WAIT_NS, 10, 20), "another replica may have that"
    assert over(wait, 7 + REPAIR_WAIT_NS), "all is repaired"
    assert not over(wait, 8 + REPAIR_WAIT_NS, 10), "and damaged again"
