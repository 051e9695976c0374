"""A replica whose leader's time falls: it knows as much as its leader, and as a start reads back."""

import pytest

from envelope.headers import MESSAGE_ID, SEQUENCE, SEQUENCE_AFTER, SESSION
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.format.batch import BatchFlags, encode
from jetstream.node.disk.open_log import OpenedLog
from tests.support.logs import NOW, Record, records_batch
from tests.support.memory_disk import MemoryDisk, everything_survives
from tests.support.opened_logs import WINDOW_US, follow, opened

YEAR_US = 365 * 24 * 3_600_000_000
TIMES = (0, 10, YEAR_US, YEAR_US, 500, 600)
"""Of the records behind `NOW`; the fifth one's has fallen."""


def frame_at(offset: int, after: int) -> bytes:
    """Return a sealed batch of one record that has an id, and is of a session."""
    headers = [
        (MESSAGE_ID, b"id%d" % offset),
        *((name, b"%d" % number) for name, number in ((SEQUENCE, offset + 1), (SEQUENCE_AFTER, offset))),
        (SESSION, b"s"),
    ]
    record = Record(headers=headers, timestamp=NOW + after)
    falls = offset > 0 and after < TIMES[offset - 1]
    batch = encode(records_batch([record], offset), Offset(offset), LeaderEpoch(1))
    return bytes(batch.seal(BatchFlags.ROLL if offset == 0 or falls else BatchFlags(0)))


def known(log: OpenedLog) -> dict[str, object]:
    history = log.history
    history.dedupe.fates.hold_from(history.end)
    history.expire(history.last_timestamp)
    return {
        "time": history.last_timestamp,
        "ids": [history.dedupe.lookup(b"id%d" % number) for number in range(len(TIMES))],
        "session": history.sessions.find(b"s"),
    }


@pytest.mark.parametrize("count", range(1, len(TIMES) + 1))
def test_a_start_reads_back_what_a_follower_knows_of_a_time_that_fell(count: int) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    follow(log, *(frame_at(offset, after) for offset, after in enumerate(TIMES[:count])))
    again = opened(disk.power_loss(everything_survives))
    assert again.log.log_end_offset == count
    found, live = known(again), known(log)
    assert (found["time"], found["session"]) == (live["time"], live["session"])
    assert found["time"] == NOW + TIMES[count - 1]
    if count > 4:
        assert found["ids"] == [*range(count), *[None] * (len(TIMES) - count)], "all are from within a window"


def test_names_from_before_the_fall_leave_a_window_behind_it() -> None:
    log = opened(MemoryDisk())
    follow(log, *(frame_at(offset, after) for offset, after in enumerate(TIMES)))
    history = log.history
    history.dedupe.fates.hold_from(history.end)
    history.expire(TimestampUs(NOW + TIMES[4] + WINDOW_US))
    assert [history.dedupe.lookup(b"id%d" % number) for number in (2, 3, 4, 5)] == [None, None, None, 5]
