"""When a log needs something besides appends."""

from dataclasses import dataclass, replace

import pytest

from envelope.types import MonotonicNs, Offset, TimestampUs
from jetstream.node.disk.log_upkeep import CHECKPOINT_QUIET_NS, Upkeep
from tests.support.logs import NOW, append, begun, filled
from tests.support.memory_disk import MemoryDisk


@dataclass(slots=True)
class TwoClocks:
    """The clocks of a machine whose time of day is set back and forth."""

    wall_us: int = NOW
    monotonic_ns: int = 5

    def wall(self) -> TimestampUs:
        return TimestampUs(self.wall_us)

    def monotonic(self) -> MonotonicNs:
        return MonotonicNs(self.monotonic_ns)


def test_a_log_has_fallen_quiet_after_a_second_whatever_the_time_of_day_is_set_to() -> None:
    clock, log = TwoClocks(), begun(MemoryDisk())
    upkeep = Upkeep(log, clock, lambda: Offset(0))
    append(log, [b"0"])
    upkeep.appended()
    clock.wall_us -= 10**12
    clock.monotonic_ns += CHECKPOINT_QUIET_NS - 1
    assert not upkeep.checkpoint_due(clock.monotonic())
    clock.monotonic_ns += 1
    assert upkeep.checkpoint_due(clock.monotonic())
    upkeep.checkpoint()
    assert not upkeep.checkpoint_due(clock.monotonic())


@pytest.mark.parametrize(
    ("is_tiered", "tier_end", "start"), [(True, None, 0), (True, 4, 4), (False, 4, 6), (False, None, 6)]
)
def test_only_the_rules_of_a_tier_wait_for_it(is_tiered: bool, tier_end: int | None, start: int) -> None:
    """Whose tier was switched off has objects still, and drops what its retention says for good."""
    log = filled(MemoryDisk(), 9)
    log.writer.config = replace(log.writer.config, retention_messages=3)
    upkeep = Upkeep(log, TwoClocks(), lambda: Offset(9))
    upkeep.is_tiered, upkeep.tier_end = is_tiered, lambda: None if tier_end is None else Offset(tier_end)
    upkeep.apply_retention()
    assert log.log_start_offset == start
