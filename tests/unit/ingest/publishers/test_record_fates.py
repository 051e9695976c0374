"""Names stay while the fate of their records is unknown, and for a window after a late commit."""

from datetime import timedelta

import pytest

from envelope.errors import Overloaded
from envelope.limits import KIB
from envelope.types import Offset, TimestampUs
from jetstream.ingest.publishers import dedupe
from jetstream.ingest.publishers.dedupe import DedupeWindow, window_us
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.publishers.record_fates import RecordFates
from tests.support.ingest_machine import WINDOW, IngestHarness, outcomes
from tests.support.messages import message


def test_a_repeat_of_an_uncommitted_record_is_found_however_late_it_comes() -> None:
    stream = IngestHarness()
    stream.receive(message(b"1", "r", Nats_Msg_Id="a"))
    stream.append()
    for late in range(3):
        stream.now = TimestampUs(stream.now + 3 * window_us(WINDOW))
        stream.receive(message(b"2"))
        stream.append()
        assert stream.receive(message(b"1", f"q{late}", Nats_Msg_Id="a")) == []
        assert stream.in_flight == []
    assert outcomes(stream.commit()) == [("r", 0), ("q0", "dup 0"), ("q1", "dup 0"), ("q2", "dup 0")]
    stream.now = TimestampUs(stream.now + window_us(WINDOW) - 1)
    assert outcomes(stream.receive(message(b"1", "late", Nats_Msg_Id="a"))) == [("late", "dup 0")]
    stream.now = TimestampUs(stream.now + 1)
    assert outcomes(stream.store(message(b"1", "new", Nats_Msg_Id="a"))) == [("new", 4)]


def test_uncommitted_names_do_not_leave_by_number_and_too_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dedupe, "UNCOMMITTED_NAMES_MAX", 6)
    stream = IngestHarness(history=PublisherHistory(DedupeWindow(window_us(WINDOW), 2)))
    for number in range(6):
        assert stream.receive(message(b"v", f"r{number}", Nats_Msg_Id=f"{number}")) == []
        stream.append()
    assert outcomes(stream.receive(message(b"v", "r6", Nats_Msg_Id="6"))) == [
        ("r6", f"error {Overloaded.ack_code}")
    ]
    assert stream.receive(message(b"v", "q0", Nats_Msg_Id="0")) == []
    assert ("q0", "dup 0") in outcomes(stream.commit())
    assert outcomes(stream.store(message(b"v", "r6", Nats_Msg_Id="6"))) == [("r6", 6)]
    assert outcomes(stream.store(message(b"v", "q4", Nats_Msg_Id="4"))) == [("q4", 7)], "of two names"


def test_a_session_is_known_while_its_last_record_is_not_committed() -> None:
    stream = IngestHarness(session_window=timedelta(seconds=1))
    stream.machine.reconfigure(stream.config)
    place = {"Jetstream_Session": "p", "Jetstream_Sequence": "1"}
    stream.receive(message(b"1", "r", **place))
    stream.append()
    stream.now = TimestampUs(stream.now + 3 * window_us(WINDOW))
    assert stream.receive(message(b"1", "q", **place)) == []
    assert stream.in_flight == []
    assert outcomes(stream.commit()) == [("r", 0), ("q", "dup 0")]


def test_commits_that_wait_for_their_records_are_bounded_and_the_next_one_makes_up_for_the_rest() -> None:
    fates = RecordFates(lambda _: None)
    fates.hold_from(Offset(0))
    for high_watermark in range(1, KIB):
        fates.observe(Offset(high_watermark), TimestampUs(0))
    fates.apply_observed(Offset(10))
    assert fates.uncommitted == 10
    fates.apply_observed(Offset(KIB))
    assert fates.uncommitted < KIB - 1
    fates.observe(Offset(KIB), TimestampUs(0))
    fates.apply_observed(Offset(KIB))
    assert fates.uncommitted == KIB
