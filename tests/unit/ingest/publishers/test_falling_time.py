"""The windows of a stream whose time an operator lets fall: what came meanwhile is not forgotten."""

from hypothesis import given
from hypothesis import strategies as st

from envelope.headers import SessionPlace
from envelope.types import Offset, TimestampUs
from jetstream.ingest.publishers.dedupe import DedupeWindow
from jetstream.ingest.publishers.history import PublisherHistory, follow_time
from jetstream.ingest.publishers.sessions import PublisherSessions, StoredPlace

WINDOW = 100
AHEAD = 1_000_000
_ALL_COMMITTED = Offset(1 << 62)


def history_of(*, names_max: int = 1000) -> PublisherHistory:
    history = PublisherHistory(DedupeWindow(WINDOW, names_max), sessions=PublisherSessions(WINDOW))
    history.dedupe.fates.hold_from(_ALL_COMMITTED)
    return history


def store(history: PublisherHistory, now: int) -> bytes:
    """Store a record that is named after its offset, as a leader's sequencer does; return the name."""
    offset = history.end
    history.begin_step(offset)
    history.last_timestamp = TimestampUs(max(now, history.last_timestamp))
    history.expire(history.last_timestamp)
    name = b"%d" % offset
    history.dedupe.remember_new((name,), offset, history.last_timestamp)
    history.end = Offset(offset + 1)
    return name


def test_names_from_while_the_clock_was_ahead_and_from_after_are_found_for_a_window() -> None:
    history = history_of()
    store(history, 10)
    ahead = store(history, AHEAD)
    follow_time(history, TimestampUs(20))
    after = store(history, 25)
    store(history, 20 + WINDOW - 1)
    assert [history.dedupe.lookup(name) for name in (ahead, after)] == [1, 2]
    store(history, 20 + WINDOW)
    assert [history.dedupe.lookup(name) for name in (ahead, after)] == [None, 2]
    store(history, 25 + WINDOW)
    assert history.dedupe.lookup(after) is None


def test_the_effective_window_promises_nothing_from_before_the_fall() -> None:
    history = history_of()
    store(history, 10)
    store(history, AHEAD)
    follow_time(history, TimestampUs(20))
    assert history.dedupe.effective_window_us(TimestampUs(20)) == 0
    assert history.dedupe.effective_window_us(TimestampUs(60)) == 40
    assert history.dedupe.effective_window_us(TimestampUs(500)) == WINDOW


def test_names_that_wait_for_their_commit_are_let_go_after_a_fall() -> None:
    history = history_of()
    fates = history.dedupe.fates
    fates.hold_from(Offset(0))
    name = store(history, 10)
    store(history, AHEAD)
    history.committed(Offset(2), TimestampUs(AHEAD))
    follow_time(history, TimestampUs(20))
    store(history, 30 + WINDOW)
    assert history.dedupe.lookup(name) is None
    history.committed(Offset(3), TimestampUs(30 + WINDOW))
    assert fates.held == 3


def test_what_is_taken_back_across_a_fall_brings_the_time_back_with_it() -> None:
    history = history_of()
    store(history, AHEAD)
    follow_time(history, TimestampUs(20))
    store(history, 30)
    assert not history.can_forget_from(Offset(1), TimestampUs(AHEAD)), "its names have been made older"
    history.forget_from(Offset(1))
    assert history.last_timestamp == 20
    history.forget_from(Offset(0))
    assert history.last_timestamp == 0


def place(sequence: int, offset: int, timestamp: int) -> StoredPlace:
    return StoredPlace(SessionPlace(b"s", sequence, sequence - 1), Offset(offset), TimestampUs(timestamp))


def test_a_session_from_while_the_clock_was_ahead_stays_for_a_window() -> None:
    sessions = PublisherSessions(WINDOW)
    sessions.store(place(1, 0, AHEAD))
    sessions.expire(TimestampUs(AHEAD))
    sessions.store(place(2, 1, 20))  # as the note sees it, which is only told of records
    found = sessions.find(b"s")
    assert found is not None
    assert (found.sequence, found.timestamp, found.is_gapless) == (2, 20, True)
    sessions.expire(TimestampUs(20 + WINDOW - 1))
    assert sessions.find(b"s") is not None
    sessions.expire(TimestampUs(20 + WINDOW))
    assert sessions.find(b"s") is None


@given(st.lists(st.tuples(st.integers(0, 300), st.booleans()), max_size=30))
def test_a_name_is_found_for_a_window_from_its_record_or_the_next_fall(steps: list[tuple[int, bool]]) -> None:
    history = history_of()
    counted_from: dict[bytes, int] = {}
    for time, falls in steps:
        if falls and time < history.last_timestamp:
            follow_time(history, TimestampUs(time))
            counted_from = {name: min(since, time) for name, since in counted_from.items()}
        newest = store(history, time)
        counted_from[newest] = history.last_timestamp
        for name, since in list(counted_from.items()):
            if since > history.last_timestamp - WINDOW:
                assert history.dedupe.lookup(name) is not None
            else:
                assert history.dedupe.lookup(name) is None
                del counted_from[name]  # a later fall may bring it back, or not
