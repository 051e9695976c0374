import random
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.limits import DEDUPE_IDS_MAX
from envelope.types import Offset, TimestampUs
from jetstream.ingest.publishers.dedupe import DIGEST_BYTES, GENERATION_NAMES, DedupeWindow, name_of
from jetstream.ingest.publishers.history import PublisherHistory
from jetstream.ingest.publishers.sessions import stored_names
from jetstream.ingest.records import RecordFields, build_records
from jetstream.log.format.plain_batch_encoder import arrow_records
from tests.support.ingest_machine import absorb


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
    assert window.effective_window_us(TimestampUs(105)) == 105 - 101, "but when the next message comes"
    window.expire(TimestampUs(105))
    assert [window.lookup(b"%d" % number) for number in range(5)] == [None, None, 2, 3, 4]
    assert window.effective_window_us(TimestampUs(105)) == 105 - 101
    assert window.effective_window_us(TimestampUs(5_000)) == 1_000


def test_a_larger_window_takes_effect_from_now_on() -> None:
    window = DedupeWindow(10, 10)
    window.remember(b"a", Offset(0), TimestampUs(100))
    window.expire(TimestampUs(110))
    window.resize(1_000, 10)
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
    window.resize(1_000, 10)
    window.remember(b"a", Offset(7), TimestampUs(500))
    window.expire(TimestampUs(1_000))
    assert window.lookup(b"a") == 7
    window.expire(TimestampUs(1_500))
    assert window.lookup(b"a") is None
    assert len(window) == 0


def test_ids_are_read_from_stored_batches_slices_included() -> None:
    records = stored(10, 1000, b"a", None, b"b", None, b"c")
    assert stored_names(records).message_ids == [(0, b"a"), (2, b"b"), (4, b"c")]
    assert stored_names(records.slice(1, 3)).message_ids == [(1, b"b")]
    assert stored_names(records.slice(1, 1)).message_ids == ()
    assert stored_names(stored(0, 0)).message_ids == ()


def test_recovery_rebuilds_the_window_from_batches() -> None:
    window = DedupeWindow(100, 10)
    history = PublisherHistory(window)
    for base, timestamp, message_id in ((0, 1000, b"a"), (2, 1050, b"b"), (4, 1120, b"c")):
        absorb(history, stored(base, timestamp, None, message_id))
        history.committed(Offset(base + 2), TimestampUs(timestamp))
    history.expire(TimestampUs(1120))
    assert window.lookup(b"a") is None
    assert window.lookup(b"b") == 3
    assert window.lookup(b"c") == 5


def test_history_knows_the_last_record() -> None:
    history = PublisherHistory(DedupeWindow(1_000, 10))
    absorb(history, stored(0, 50, b"a", None, txids={0: 4, 1: 9}))
    assert (history.last_timestamp, history.last_txid, history.id_before(history.end)) == (50, 9, None)
    absorb(history, stored(2, 60, None, b"z"))
    assert (history.last_timestamp, history.last_txid, history.id_before(history.end)) == (60, 9, b"z")
    absorb(history, stored(4, 70))
    assert history.last_timestamp == 60
    assert history.dedupe.lookup(b"a") == 0


def test_ids_of_any_length_are_told_apart() -> None:
    window = DedupeWindow(1_000, 100)
    ids = [b"x" * count for count in (1, DIGEST_BYTES - 1, DIGEST_BYTES, DIGEST_BYTES + 1, 1024)]
    ids.append(name_of(ids[-1]) + b"")
    for offset, message_id in enumerate(ids):
        window.remember(name_of(message_id), Offset(offset), TimestampUs(1))
    assert [window.lookup(name_of(message_id)) for message_id in ids] == list(range(len(ids)))


def test_generations_come_and_go_for_ever() -> None:
    """More of them than there are tags, of one name each and of many."""
    for names_max in (1, 3):
        window = DedupeWindow(1_000_000, names_max)
        for number in range(2_000):
            window.expire(TimestampUs(number))
            names = [window.lookup(b"%d" % each) for each in range(number - names_max - 3, number)]
            kept = [
                each if each >= max(0, number - names_max) else None
                for each in range(number - names_max - 3, number)
            ]
            assert names == kept
            window.remember(b"%d" % number, Offset(number), TimestampUs(number))


def test_an_id_is_found_in_any_generation() -> None:
    window = DedupeWindow(1_000, 3 * GENERATION_NAMES)
    count = 3 * GENERATION_NAMES + 5
    for number in range(count):
        window.remember(b"%d" % number, Offset(number), TimestampUs(1))
    window.expire(TimestampUs(2))
    assert len(window) == 3 * GENERATION_NAMES
    assert [number for number in range(count + 50) if window.lookup(b"%d" % number) != number] == [
        *range(5),
        *range(count, count + 50),
    ]
    window.forget_from(Offset(GENERATION_NAMES - 1))
    found = [number for number in range(count) if window.lookup(b"%d" % number) is not None]
    assert found == list(range(5, GENERATION_NAMES - 1))


def test_generations_whose_names_were_all_taken_back_are_dropped_in_their_turn() -> None:
    window = DedupeWindow(100, 2)
    for number in range(6):  # in one group, so that none leaves
        window.remember(b"%d" % number, Offset(number), TimestampUs(1))
    window.forget_from(Offset(1))
    window.remember(b"new", Offset(1), TimestampUs(2))
    window.expire(TimestampUs(102))
    assert len(window) == 0
    window.expire(TimestampUs(103))
    window.remember(b"newer", Offset(2), TimestampUs(103))
    assert window.lookup(b"newer") == 2


def test_what_comes_after_names_that_left_and_were_taken_back_is_remembered() -> None:
    window = DedupeWindow(100, 2)
    window.remember(b"a", Offset(0), TimestampUs(1))
    window.remember(b"b", Offset(1), TimestampUs(1))
    window.remember(b"c", Offset(2), TimestampUs(1))
    window.expire(TimestampUs(2))
    window.forget_from(Offset(0))
    window.remember(b"d", Offset(0), TimestampUs(2))
    assert window.lookup(b"d") == 0
    assert len(window) == 1


@pytest.mark.parametrize(
    "count",
    [
        8 * GENERATION_NAMES,
        pytest.param(
            DEDUPE_IDS_MAX,
            marks=pytest.mark.slow("tests/unit/ingest/publishers/test_dedupe.py"),
            id="the default",
        ),
    ],
)
def test_an_id_takes_at_most_150_bytes(count: int) -> None:
    """The usual ones: UUIDs as text, while the oldest leave as new ones come."""
    tracemalloc.start()
    try:
        window = DedupeWindow(count, count)
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count + GENERATION_NAMES + 100):
            if number % 100 == 0:
                window.expire(TimestampUs(number))
            window.remember(b"%036d" % number, Offset(number), TimestampUs(number))
        size = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert size / len(window) <= 150


IDS = [b"%d" % number for number in range(10)]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 30), st.lists(st.sampled_from(IDS), min_size=1, max_size=1)),
            st.tuples(st.integers(0, 30), st.lists(st.sampled_from(IDS), min_size=1, max_size=6)),
            st.integers(1, 4),
        ),
        max_size=60,
    ),
    st.integers(1, 50),
    st.integers(1, 12),
)
def test_the_window_equals_a_list_that_is_searched(
    steps: list[tuple[int, list[bytes]] | int], window_us: int, ids_max: int
) -> None:
    window = DedupeWindow(window_us, ids_max)
    every: list[tuple[int, bytes, int]] = []
    ever: set[bytes] = set()
    now = offset = 0
    for step in steps:
        if isinstance(step, int):  # so many records are not stored after all
            offset = max(0, offset - step)
            window.forget_from(Offset(offset))
            every = [entry for entry in every if entry[2] < offset]
            continue
        later, message_ids = step
        now += later
        window.expire(TimestampUs(now))
        every = [entry for entry in every if entry[0] > now - window_us][-ids_max:]
        assert len(window) == len(every)
        are_new = window.are_new(message_ids)
        if len(set(message_ids)) == len(message_ids) and not ever.intersection(message_ids):
            assert are_new
        ever.update(message_ids)
        if are_new:
            assert len(set(message_ids)) == len(message_ids)
            window.remember_new(message_ids, Offset(offset), TimestampUs(now))
        for message_id in message_ids:
            found = next((at for _, each, at in reversed(every) if each == message_id), None)
            if are_new:
                assert found is None
            else:
                assert window.lookup(message_id) == found
            if found is None and not are_new:
                window.remember(message_id, Offset(offset), TimestampUs(now))
            if found is None:
                every.append((now, message_id, offset))
            offset += 1


@given(st.integers(0, 2**32), st.integers(2, 400), st.integers(1, 300))
def test_names_that_come_together_are_remembered_as_those_that_come_singly(
    seed: int, ids_max: int, window_us: int
) -> None:
    chance = random.Random(seed)
    together, singly = DedupeWindow(window_us, ids_max), DedupeWindow(window_us, ids_max)
    offset = now = 0
    for _ in range(60):
        now += chance.randrange(20)
        together.expire(TimestampUs(now))
        singly.expire(TimestampUs(now))
        if chance.random() < 0.2:
            offset = max(0, offset - chance.randrange(40))
            together.forget_from(Offset(offset))
            singly.forget_from(Offset(offset))
        names = [b"%d" % chance.randrange(500) for _ in range(chance.randrange(1, 12))]
        if together.are_new(names):
            assert [name for name in names if singly.lookup(name) is not None] == []
            together.remember_new(names, Offset(offset), TimestampUs(now))
            for place, name in enumerate(names, offset):
                singly.remember(name, Offset(place), TimestampUs(now))
        offset += len(names)
        assert len(together) == len(singly)
        assert [together.lookup(b"%d" % number) for number in range(500)] == [
            singly.lookup(b"%d" % number) for number in range(500)
        ]


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.sampled_from(["", *"abcdefgh", "i" * 60]), max_size=5))
    ),
    st.integers(1, 20),
    st.integers(1, 12),
)
def test_a_follower_learns_ids_that_stand_alone_as_it_learns_others(
    groups: list[tuple[int, list[str]]], window_us: int, ids_max: int
) -> None:
    alone = PublisherHistory(DedupeWindow(window_us, ids_max))
    with_others = PublisherHistory(DedupeWindow(window_us, ids_max))
    base, now = 0, 1
    for later, texts in groups:
        now += later
        ids = [text.encode() for text in texts]
        many = ([b"s"] * len(ids), [b""] * len(ids))
        headers = {row: [("Nats-Msg-Id", each)] for row, each in enumerate(ids)}
        others = {row: [("Other", b""), *each] for row, each in headers.items()}
        for history, fields in ((alone, headers), (with_others, others)):
            records = build_records(Offset(base), TimestampUs(now), *many, RecordFields(headers=fields))
            assert not absorb(history, arrow_records(records))
        base += len(ids)
        assert alone.id_before(alone.end) == with_others.id_before(with_others.end)
        assert alone.last_timestamp == with_others.last_timestamp
        assert len(alone.dedupe) == len(with_others.dedupe)
        for text in ["", *"abcdefgh", "i" * 60]:
            name = name_of(text.encode())
            assert alone.dedupe.lookup(name) == with_others.dedupe.lookup(name)
