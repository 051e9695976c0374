"""What a leader writes to a stream of its own: gathered, settled in order, refused as a whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import DiskFull, NotEnoughReplicas
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.ingest.internal_writes import (
    InternalAppend,
    InternalWrite,
    InternalWriteCommitted,
    InternalWriteRefused,
    InternalWrites,
)
from jetstream.ingest.publishers.dedupe import DedupeWindow
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.log.format.plain_batch_encoder import arrow_records

NOW = TimestampUs(1_764_000_000_000_000)
FULL = DiskFull("full")


class Harness:
    """Gives groups as the shell does, and remembers what is in the log."""

    def __init__(self, end: int = 0) -> None:
        self.history = PublisherHistory(DedupeWindow(0, 1), high_watermark=Offset(end), end=Offset(end))
        self.writes = InternalWrites("js.cursors.groups.1", LeaderEpoch(3), Offset(end), self.history)
        self.appends: list[InternalAppend] = []
        self.log: list[tuple[bytes, bytes | None]] = [(b"", b"")] * end
        self.told: list[InternalWriteCommitted | InternalWriteRefused] = []

    def offer(self, *numbers: int, size: int = 1) -> None:
        for number in numbers:
            records = [(b"key-%d" % number, b"value-%d-%d" % (number, row)) for row in range(size)]
            self.writes.offer(InternalWrite(number, records))

    def begin(self) -> bool:
        """Begin a group if one is due; tell whether it was."""
        if not self.writes.wants_group():
            return False
        append = self.writes.begin_group(NOW)
        if append is not None:
            self.appends.append(append)
        self._tell()
        return True

    def end_append(self, error: DiskFull | None = None) -> None:
        append = self.appends.pop(0)
        if error is not None or append.base != len(self.log):
            self.writes.append_refused(error or FULL)
        else:
            records = arrow_records(append.records)
            self.log += ((row["key"], row["value"]) for row in records.to_pylist())
            self.writes.appended(Offset(len(self.log)))
        self._tell()

    def commit(self) -> None:
        self.writes.committed(Offset(len(self.log)))
        self._tell()

    def _tell(self) -> None:
        self.told += self.writes.settled()

    @property
    def numbers(self) -> list[int]:
        return [outcome.number for outcome in self.told]


def test_a_write_is_told_once_it_is_committed_and_not_before() -> None:
    harness = Harness(end=5)
    harness.offer(1)
    assert harness.begin()
    assert harness.appends[0].base == 5
    harness.end_append()
    assert harness.told == []
    harness.commit()
    assert harness.told == [InternalWriteCommitted(1, NOW)]
    assert harness.log[5:] == [(b"key-1", b"value-1-0")]


def test_a_value_of_none_is_a_tombstone() -> None:
    harness = Harness()
    harness.writes.offer(InternalWrite(1, [(b"a", None), (b"b", b"")]))
    harness.begin()
    harness.end_append()
    assert harness.log == [(b"a", None), (b"b", b"")]


def test_what_comes_gathers_while_something_is_not_committed() -> None:
    harness = Harness()
    harness.offer(1)
    harness.begin()
    harness.offer(2, 3)
    assert not harness.begin()
    harness.end_append()
    assert not harness.begin()
    harness.commit()
    assert harness.begin()
    assert arrow_records(harness.appends[0].records).num_rows == 2


def test_much_does_not_wait_but_for_two_appends_in_flight() -> None:
    harness = Harness()
    harness.offer(1)
    harness.begin()
    harness.offer(2, size=64)
    assert harness.begin()
    harness.offer(3, size=64)
    assert not harness.begin()
    harness.end_append()
    assert harness.begin()


def test_at_the_end_nothing_gathers() -> None:
    harness = Harness()
    harness.offer(1)
    harness.begin()
    harness.end_append()
    harness.offer(2)
    assert not harness.begin()
    harness.writes.hurry()
    assert harness.begin()


def test_a_refused_append_takes_all_behind_it_along() -> None:
    harness = Harness()
    harness.offer(1)
    harness.begin()
    harness.offer(2, size=64)
    harness.begin()
    harness.offer(3)
    harness.end_append(FULL)
    assert harness.told == [
        InternalWriteRefused(1, FULL),
        InternalWriteRefused(2, FULL),
        InternalWriteRefused(3, FULL),
    ]
    assert not harness.begin()
    harness.end_append(FULL)
    harness.offer(4)
    assert harness.begin()
    harness.end_append()
    harness.commit()
    assert harness.told[-1] == InternalWriteCommitted(4, NOW)
    assert harness.log == [(b"key-4", b"value-4-0")]


def test_a_refusal_is_told_behind_what_was_appended_before_it() -> None:
    harness = Harness()
    harness.offer(1)
    harness.begin()
    harness.end_append()
    lacking = NotEnoughReplicas("one is left")
    harness.writes.suspend(lacking)
    harness.offer(2)
    assert harness.begin()
    assert harness.told == []
    assert harness.writes.unsettled == 2
    harness.commit()
    assert harness.told == [InternalWriteCommitted(1, NOW), InternalWriteRefused(2, lacking)]
    harness.writes.suspend(None)
    harness.offer(3)
    assert harness.begin()
    assert len(harness.appends) == 1


def test_a_refusal_waits_for_the_answer_to_an_append_before_it() -> None:
    harness = Harness()
    harness.offer(1)
    harness.begin()
    lacking = NotEnoughReplicas("one is left")
    harness.writes.suspend(lacking)
    harness.offer(2)
    assert not harness.begin()
    harness.end_append()
    assert harness.begin()
    harness.commit()
    assert harness.told == [InternalWriteCommitted(1, NOW), InternalWriteRefused(2, lacking)]


def test_timestamps_never_go_back() -> None:
    harness = Harness()
    harness.history.last_timestamp = TimestampUs(NOW + 7)
    harness.offer(1)
    harness.begin()
    harness.end_append()
    harness.commit()
    assert harness.told == [InternalWriteCommitted(1, TimestampUs(NOW + 7))]


def test_a_group_has_as_much_as_a_batch_may() -> None:
    harness = Harness()
    harness.writes.offer(InternalWrite(1, [(b"k", b"x" * (6 << 20))]))
    harness.writes.offer(InternalWrite(2, [(b"k", b"x" * (6 << 20))]))
    harness.begin()
    assert arrow_records(harness.appends[0].records).num_rows == 1
    assert harness.writes.waiting == 1


STEPS = st.lists(
    st.sampled_from(["offer", "much", "begin", "end", "fail", "commit", "lack", "enough"]), max_size=60
)


@given(STEPS)
def test_outcomes_come_in_order_and_are_true(steps: list[str]) -> None:
    """M6, M7: whatever happens when, each write has one outcome, and the log holds exactly the committed."""
    harness = Harness()
    number = 0
    for step in [*steps, "enough"]:
        if step in ("offer", "much"):
            number += 1
            harness.offer(number, size=64 if step == "much" else 1)
        elif step == "begin":
            harness.begin()
        elif step in ("end", "fail") and harness.appends:
            harness.end_append(FULL if step == "fail" else None)
        elif step == "commit":
            harness.commit()
        elif step in ("lack", "enough"):
            harness.writes.suspend(NotEnoughReplicas("few") if step == "lack" else None)
    while harness.appends or harness.writes.waiting or harness.writes.unsettled:
        harness.begin()
        if harness.appends:
            harness.end_append()
        harness.commit()
    assert harness.numbers == list(range(1, number + 1))
    committed = {outcome.number for outcome in harness.told if isinstance(outcome, InternalWriteCommitted)}
    stored = [int(key.split(b"-")[1]) for key, _ in harness.log]
    assert stored == sorted(stored)
    assert set(stored) == committed


def test_a_writer_or_a_shell_that_breaks_the_protocol_is_stopped() -> None:
    harness = Harness()
    with pytest.raises(AssertionError, match="M7"):
        harness.writes.append_refused(FULL)
    harness.offer(2)
    with pytest.raises(AssertionError, match="M6"):
        harness.offer(1)
