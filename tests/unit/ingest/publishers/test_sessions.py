"""What is known of a session: a table by itself, without a log."""

import pytest

from envelope.errors import InvalidHeader
from envelope.headers import SessionPlace, publish_headers, session_place
from envelope.types import Offset, TimestampUs
from jetstream.ingest.publishers.dedupe import DedupeWindow
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.publishers.sessions import (
    WINDOW_US_DEFAULT,
    PublisherSession,
    PublisherSessions,
    StoredPlace,
    name_in_window,
    stored_names,
)
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.format.plain_batch_encoder import arrow_records
from tests.support import messages
from tests.support.ingest_machine import IDS_MAX, IngestHarness, absorb, outcomes
from tests.support.messages import PublishedMessage


def stored(session: bytes, sequence: int, after: int | None, offset: int, at: int) -> StoredPlace:
    return StoredPlace(SessionPlace(session, sequence, after), Offset(offset), TimestampUs(at))


@pytest.mark.parametrize(
    "places",
    [
        ((1, 0, True), (2, 1, True), (3, None, False), (4, 3, False)),
        ((1, 0, True), (2, 1, True), (4, 2, False), (5, 4, False)),
        ((2, 0, False), (3, 2, False)),
    ],
    ids=["one names none", "a number is left out", "the first is left out"],
)
def test_a_session_is_gapless_while_each_record_has_the_next_number_and_names_the_one_before_it(
    places: tuple[tuple[int, int | None, bool], ...],
) -> None:
    sessions = PublisherSessions(100)
    for sequence, after, is_gapless in places:
        sessions.store(stored(b"p", sequence, after, sequence, sequence))
        assert sessions.find(b"p") == PublisherSession(
            sequence, Offset(sequence), TimestampUs(sequence), is_gapless
        )


def test_a_session_whose_beginning_is_not_known_is_not_taken_for_gapless() -> None:
    sessions = PublisherSessions(100)
    sessions.store(stored(b"p", 5, 4, 0, 0))
    assert sessions.find(b"p") == PublisherSession(5, Offset(0), TimestampUs(0), is_gapless=False)


def test_a_lower_number_changes_nothing() -> None:
    sessions = PublisherSessions(100)
    sessions.store(stored(b"p", 1, 0, 2, 0))
    sessions.store(stored(b"p", 2, 1, 3, 0))
    sessions.store(stored(b"p", 1, 0, 4, 1))
    assert sessions.find(b"p") == PublisherSession(2, Offset(3), TimestampUs(0), is_gapless=True)


def test_a_session_expires_by_log_time_and_a_clock_set_back_brings_none_back() -> None:
    sessions = PublisherSessions(100)
    sessions.store(stored(b"p", 1, 0, 0, 50))
    sessions.expire(TimestampUs(149))
    assert sessions.find(b"p") is not None
    sessions.expire(TimestampUs(150))
    sessions.expire(TimestampUs(60))
    assert (sessions.find(b"p"), len(sessions)) == (None, 0)


def test_beyond_the_count_the_session_idle_longest_is_pushed_out() -> None:
    sessions = PublisherSessions(1000, sessions_max=2)
    for at, session in enumerate((b"p", b"q", b"p", b"r"), 10):
        sessions.store(stored(session, at, None, at, at))
    assert sessions.effective_window_us(TimestampUs(20)) == 20 - 11, "when the next message comes"
    sessions.expire(TimestampUs(20))
    assert [session for session, _ in sessions.items()] == [b"p", b"r"]
    assert sessions.effective_window_us(TimestampUs(20)) == 20 - 11


def test_a_session_that_was_taken_back_still_expires_in_time() -> None:
    sessions = PublisherSessions(100)
    before = PublisherSession(1, Offset(0), TimestampUs(0), is_gapless=True)
    sessions.put(b"p", before)
    sessions.put(b"q", PublisherSession(1, Offset(1), TimestampUs(50), is_gapless=True))
    sessions.store(stored(b"p", 2, 1, 2, 60))
    sessions.put(b"p", before)
    sessions.expire(TimestampUs(100))
    assert sessions.find(b"p") is None
    assert sessions.find(b"q") is not None


def test_sessions_that_are_not_in_the_log_are_forgotten() -> None:
    sessions = PublisherSessions(100)
    sessions.store(stored(b"p", 1, 0, 7, 1))
    sessions.store(stored(b"q", 1, 0, 8, 1))
    sessions.forget_from(Offset(8))
    assert [session for session, _ in sessions.items()] == [b"p"]


def test_places_of_different_sessions_have_different_names() -> None:
    names = {
        name_in_window(SessionPlace(session, sequence, None))
        for session in (b"p", b"q", b"p1")
        for sequence in (1, 2, 11, (1 << 63) - 1)
    }
    assert len(names) == 12


# --- headers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "place"),
    [
        ({"Jetstream-Session": b"p", "Jetstream-Sequence": b"1"}, SessionPlace(b"p", 1, None)),
        (
            {"Jetstream-Session": b"\xff", "Jetstream-Sequence": b"9", "Jetstream-Sequence-After": b"0"},
            SessionPlace(b"\xff", 9, 0),
        ),
        ({"Nats-Msg-Id": b"a"}, None),
    ],
)
def test_a_place_in_a_session_is_read(headers: dict[str, bytes], place: SessionPlace | None) -> None:
    assert session_place(headers) == place
    asked = publish_headers(list(headers.items()))
    assert (asked.session, asked.problem) == (place, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Jetstream-Sequence": b"1"},
        {"Jetstream-Sequence-After": b"0"},
        {"Jetstream-Session": b"p"},
        {"Jetstream-Session": b"", "Jetstream-Sequence": b"1"},
        {"Jetstream-Session": b"p" * 129, "Jetstream-Sequence": b"1"},
        {"Jetstream-Session": b"p", "Jetstream-Sequence": b"0"},
        {"Jetstream-Session": b"p", "Jetstream-Sequence": b"-1"},
        {"Jetstream-Session": b"p", "Jetstream-Sequence": b"1.0"},
        {"Jetstream-Session": b"p", "Jetstream-Sequence": b"9223372036854775808"},
        {"Jetstream-Session": b"p", "Jetstream-Sequence": b"2", "Jetstream-Sequence-After": b"2"},
        {"Jetstream-Session": b"p", "Jetstream-Sequence": b"2", "Jetstream-Sequence-After": b""},
    ],
)
def test_what_is_no_place_in_a_session_is_refused(headers: dict[str, bytes]) -> None:
    with pytest.raises(InvalidHeader):
        session_place(headers)
    asked = publish_headers(list(headers.items()))
    assert isinstance(asked.problem, InvalidHeader)
    assert asked.session is None


def test_a_message_has_an_id_or_a_place_and_not_both() -> None:
    headers = {"Jetstream-Session": b"p", "Jetstream-Sequence": b"1", "Nats-Msg-Id": b"a"}
    assert isinstance(publish_headers(list(headers.items())).problem, InvalidHeader)


def test_headers_of_a_time_when_they_meant_nothing_mean_nothing() -> None:
    pairs = [
        [("Jetstream-Session", b"p"), ("Jetstream-Sequence", b"x")],
        [("Jetstream-Session", b"p"), ("Jetstream-Sequence", b"1"), ("Nats-Msg-Id", b"a")],
        [("Jetstream-Session", b"p"), ("Jetstream-Sequence", b"7"), ("Jetstream-Sequence", b"8")],
    ]
    fields = RecordFields(headers=dict(enumerate(pairs)))
    records = arrow_records(build_records(Offset(5), TimestampUs(3), [b"s"] * 3, [b""] * 3, fields))
    names = stored_names(records)
    assert (names.message_ids, names.places) == ([(1, b"a")], [(2, SessionPlace(b"p", 7, None))])
    history = PublisherHistory(DedupeWindow(1000, 10))
    assert absorb(history, records) == [stored(b"p", 7, None, 7, 3)]
    assert history.sessions.find(b"p") == PublisherSession(7, Offset(7), TimestampUs(3), is_gapless=False)


def test_what_is_known_of_a_session_is_not_learnt_again_from_records_of_its_former_life() -> None:
    """The record that began it anew may be gone by compaction, and one from before its end be kept."""
    fields = RecordFields(headers={0: [("Jetstream-Session", b"p"), ("Jetstream-Sequence", b"9")]})
    records = arrow_records(build_records(Offset(0), TimestampUs(3), [b"s"], [b""], fields))
    history = PublisherHistory(DedupeWindow(1000, 10))
    known = PublisherSession(1, Offset(5), TimestampUs(20), is_gapless=True)
    history.sessions.put(b"p", known)
    absorb(history, records, Offset(6))
    assert history.sessions.find(b"p") == known
    assert history.dedupe.lookup(name_in_window(SessionPlace(b"p", 9, None))) == 0


# --- the machine ---------------------------------------------------------------------------------------


def message(number: int, sequence: int, after: int | None, *more: tuple[str, str]) -> PublishedMessage:
    headers = [("Jetstream-Session", "p"), ("Jetstream-Sequence", str(sequence)), *more]
    if after is not None:
        headers.append(("Jetstream-Sequence-After", str(after)))
    return PublishedMessage(b"%d" % number, reply=b"r%d" % number, headers=tuple(headers))


def test_a_stream_that_is_not_asked_takes_what_comes() -> None:
    """It may have missed messages, or be younger than the session: the stream that answers has them."""
    stream = IngestHarness()
    other = ("Nats-Expected-Stream", "audit")
    assert stream.store(message(1, 5, 4, other), message(2, 9, 8, other), message(3, 5, 4, other)) == []
    assert stream.values == [b"1", b"2"]


@pytest.mark.parametrize(
    ("window_us", "outcome"), [(WINDOW_US_DEFAULT, "dup 0"), (1_000_000, 4)], ids=["longer", "shorter"]
)
def test_a_session_that_was_pushed_out_is_known_by_the_ids_and_one_that_may_have_expired_begins_anew(
    window_us: int, outcome: object
) -> None:
    history = PublisherHistory(
        DedupeWindow(10_000_000, IDS_MAX), Offset(0), sessions=PublisherSessions(window_us, 2)
    )
    stream = IngestHarness(history=history)
    for session in "abcd":
        stream.store(messages.message(b"v", "r", Jetstream_Session=session, Jetstream_Sequence="1"))
    assert history.sessions.find(b"a") is None
    again = messages.message(b"v", "r", Jetstream_Session="a", Jetstream_Sequence="1")
    assert outcomes(stream.store(again)) == [("r", outcome)]


def test_a_repeat_waits_for_its_original() -> None:
    stream = IngestHarness()
    assert stream.receive(message(1, 1, 0)) == []
    assert stream.receive(message(2, 1, 0)) == []
    assert stream.append() == []
    assert outcomes(stream.commit()) == [("r1", 0), ("r2", "dup 0")]


def test_a_number_that_was_left_out_is_not_taken_for_a_repeat() -> None:
    """It may be that of a message that was refused, and left out: nobody may be told that it is stored."""
    stream = IngestHarness()
    assert outcomes(stream.store(message(1, 1, 0))) == [("r1", 0)]
    unmet = ("Nats-Expected-Last-Sequence", "7")
    assert outcomes(stream.store(message(2, 2, 1, unmet))) == [("r2", "error 10071")]
    assert outcomes(stream.store(message(3, 3, 1))) == [("r3", 1)], "what was refused is left out"
    again = [message(4, 1, 0), message(5, 2, 1), message(6, 3, 2)]
    assert sorted(outcomes(stream.store(*again))) == [("r4", "dup 0"), ("r5", "error 60028"), ("r6", "dup 1")]
    assert stream.values == [b"1", b"3"]


def test_a_session_gives_way_to_expectations_but_repeats_do_not() -> None:
    stream = IngestHarness()
    expected = ("Nats-Expected-Last-Sequence", "0")
    assert outcomes(stream.store(message(1, 1, 0, expected))) == [("r1", 0)]
    assert outcomes(stream.store(message(2, 1, 0, expected))) == [("r2", "dup 0")]
    assert outcomes(stream.store(message(3, 2, 1, expected))) == [("r3", "error 10071")]
    assert outcomes(stream.store(message(4, 3, 1))) == [("r4", 1)], "what was refused is no part of it"
