import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from envelope.types import Offset, TimestampUs
from jetstream.ingest.dedupe import DedupeWindow, message_ids
from jetstream.ingest.history import History
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.plain_batch import arrow_records


def stored(
    base: int, timestamp: int, *ids: bytes | None, txids: dict[int, int] | None = None
) -> pa.RecordBatch:
    fields = RecordFields(txids=txids or {})
    for row, message_id in enumerate(ids):
        if message_id is not None:
            fields.headers[row] = [("Other", b"1"), ("Nats-Msg-Id", message_id), ("Nats-Msg-Id", b"second")]
    records = build_records(Offset(base), TimestampUs(timestamp), [b"s"] * len(ids), [b""] * len(ids), fields)
    return arrow_records(records)


def test_an_id_is_found_within_the_window_and_not_at_its_end() -> None:
    window = DedupeWindow(100, 10)
    window.remember(b"a", Offset(5), TimestampUs(1000))
    window.expire(TimestampUs(1099))
    assert window.lookup(b"a") == 5
    window.expire(TimestampUs(1100))
    assert window.lookup(b"a") is None


def test_a_window_of_zero_remembers_nothing() -> None:
    window = DedupeWindow(0, 10)
    window.remember(b"a", Offset(5), TimestampUs(1000))
    assert window.lookup(b"a") is None
    assert len(window) == 0


def test_beyond_the_count_the_oldest_leave_and_the_effective_window_shrinks() -> None:
    window = DedupeWindow(1_000, 3)
    for number in range(5):
        window.remember(b"%d" % number, Offset(number), TimestampUs(100 + number))
    assert len(window) == 5, "nothing leaves while an append may be in flight"
    assert window.effective_window_us(TimestampUs(105)) == 1_000
    window.expire(TimestampUs(105))
    assert [window.lookup(b"%d" % number) for number in range(5)] == [None, None, 2, 3, 4]
    assert window.effective_window_us(TimestampUs(105)) == 105 - 101
    assert window.effective_window_us(TimestampUs(5_000)) == 1_000


def test_a_larger_window_takes_effect_from_now_on() -> None:
    window = DedupeWindow(10, 10)
    window.remember(b"a", Offset(0), TimestampUs(100))
    window.expire(TimestampUs(110))
    window.resize(1_000)
    assert window.window_us == 1_000
    assert window.effective_window_us(TimestampUs(110)) == 10


def test_what_was_not_stored_is_forgotten() -> None:
    window = DedupeWindow(100, 10)
    for number in range(4):
        window.remember(b"%d" % number, Offset(number), TimestampUs(1))
    window.forget_from(Offset(2))
    assert [window.lookup(b"%d" % number) for number in range(4)] == [0, 1, None, None]
    window.remember(b"3", Offset(2), TimestampUs(1))
    assert window.lookup(b"3") == 2


def test_an_id_used_again_after_its_window_names_the_later_record() -> None:
    window = DedupeWindow(100, 10)
    window.remember(b"a", Offset(0), TimestampUs(0))
    window.resize(1_000)
    window.remember(b"a", Offset(7), TimestampUs(500))
    window.expire(TimestampUs(1_000))
    assert window.lookup(b"a") == 7
    window.expire(TimestampUs(1_500))
    assert window.lookup(b"a") is None
    assert len(window._queue) == 0


def test_ids_are_read_from_stored_batches_slices_included() -> None:
    records = stored(10, 1000, b"a", None, b"b", None, b"c")
    assert message_ids(records) == [(0, b"a"), (2, b"b"), (4, b"c")]
    assert message_ids(records.slice(1, 3)) == [(1, b"b")]
    assert message_ids(records.slice(1, 1)) == []
    assert message_ids(stored(0, 0)) == []


def test_recovery_rebuilds_the_window_from_batches() -> None:
    window = DedupeWindow(100, 10)
    for base, timestamp, message_id in ((0, 1000, b"a"), (2, 1050, b"b"), (4, 1120, b"c")):
        window.recover(stored(base, timestamp, None, message_id))
    assert window.lookup(b"a") is None
    assert window.lookup(b"b") == 3
    assert window.lookup(b"c") == 5


def test_history_knows_the_last_record() -> None:
    history = History(DedupeWindow(1_000, 10))
    history.absorb(stored(0, 50, b"a", None, txids={0: 4, 1: 9}))
    assert (history.last_timestamp, history.last_txid, history.last_message_id) == (50, 9, None)
    history.absorb(stored(2, 60, None, b"z"))
    assert (history.last_timestamp, history.last_txid, history.last_message_id) == (60, 9, b"z")
    history.absorb(stored(4, 70))
    assert history.last_timestamp == 60
    assert history.dedupe.lookup(b"a") == 0


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from([b"a", b"b", b"c", b"d"])), max_size=60),
    st.integers(1, 50),
    st.integers(1, 4),
)
def test_the_window_equals_a_list_that_is_searched(
    steps: list[tuple[int, bytes]], window_us: int, ids_max: int
) -> None:
    window = DedupeWindow(window_us, ids_max)
    every: list[tuple[int, bytes, int]] = []
    now = 0
    for offset, (later, message_id) in enumerate(steps):
        now += later
        window.expire(TimestampUs(now))
        every = [entry for entry in every if entry[0] > now - window_us][-ids_max:]
        found = next((at for _, each, at in reversed(every) if each == message_id), None)
        assert window.lookup(message_id) == found
        if found is None:
            window.remember(message_id, Offset(offset), TimestampUs(now))
            every.append((now, message_id, offset))
