"""The checker of repeats is not mute, and lets pass what is permitted; the clusters that it is for."""

from random import Random

import pytest

from envelope.types import LeaderEpoch, Offset, StreamName, TimestampUs
from tests.simulation.replica.checkers.ids import Ids
from tests.simulation.replica.checkers.truths import Truths
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.swarm import draw, with_dedupe_windows
from tests.simulation.violation import Violation

WINDOW, LATE = 640, 1_000
EPOCH = LeaderEpoch(1)


class _Stream:
    """One value at offset 0, of time 0, in a log that any disk may have; not committed yet."""

    def __init__(self) -> None:
        self.truths, self.image = Truths(), LogImage(StreamName("orders"))
        self.ids = Ids(self.truths, WINDOW)
        assert not self.store_at(0)
        self.image.append(Batch(Offset(0), EPOCH, ("x",)))

    def commit_at(self, now: int, *in_sync: str) -> None:
        self.truths.newest.by_leader("a/orders", self.image, Offset(1))
        self.ids.announced(Offset(1), TimestampUs(now), in_sync)

    def store_at(self, now: int, directory: str = "a") -> bool:
        place = (EPOCH, self.image.log_end)
        return self.ids.stored("x", place, TimestampUs(now), directory, self.image)


def test_an_id_is_not_stored_again_while_its_record_is_not_committed() -> None:
    with pytest.raises(Violation, match="x is at 0 in epoch 1, and a stores it again though it is not comm"):
        _Stream().store_at(100 * WINDOW)


def test_an_id_is_not_stored_again_within_a_window_of_its_timestamp() -> None:
    stream = _Stream()
    stream.commit_at(1, "a", "b")
    with pytest.raises(Violation, match="stores it again after 639 of 640 us"):
        stream.store_at(WINDOW - 1)
    assert stream.store_at(WINDOW)


@pytest.mark.parametrize("directory", ["a", "b"])
def test_an_id_is_not_stored_again_within_a_window_of_a_late_commit(directory: str) -> None:
    stream = _Stream()
    stream.commit_at(LATE, "a", "b")
    with pytest.raises(Violation, match="after 639 of 640 us; committed 1000 us late"):
        stream.store_at(LATE + WINDOW - 1, directory)
    assert stream.store_at(LATE + WINDOW, directory)


def test_who_was_not_in_sync_at_a_late_commit_or_lost_its_log_since_counts_from_the_timestamp() -> None:
    stream = _Stream()
    stream.commit_at(LATE, "a", "b")
    assert stream.store_at(LATE + 1, "c")
    stream = _Stream()
    stream.commit_at(LATE, "a", "b")
    stream.ids.lost("b", Offset(0))
    assert stream.store_at(LATE + 1, "b")


def test_a_log_that_lacks_the_record_may_store_it() -> None:
    stream = _Stream()
    stream.image.cut(0)
    assert not stream.store_at(1)


def test_a_minority_of_clusters_has_short_windows_and_the_others_are_unchanged() -> None:
    drawn = [draw(Random(seed), frugal=False) for seed in range(200)]
    windowed = [with_dedupe_windows(swarm, Random(f"w{seed}")) for seed, swarm in enumerate(drawn)]
    changed = [swarm for swarm, before in zip(windowed, drawn, strict=True) if swarm != before]
    assert 20 < len(changed) < 80
    for swarm in changed:
        windows = [shape.dedupe_window for shape in swarm.streams]
        assert min(windows) >= 8 * swarm.settings.heartbeat_interval_ns
        assert "followers_away" in swarm.faults
