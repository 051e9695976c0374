"""Hashes of keys and the last offset of each, against a dictionary."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jetstream.log.rewriting.latest_offsets import ENTRY_BYTES, KeyHasher, LatestOffsets

KEYS = st.one_of(
    st.binary(max_size=4),
    st.sampled_from((b"", b"\0", b"\0\0", b"a", b"a\0", b"\0a", b"x" * 256, b"x" * 257, b"x" * 256 + b"\0")),
    st.binary(min_size=250, max_size=600),
)
HASHER = KeyHasher()


def column(keys: list[bytes]) -> "pa.Array[pa.BinaryScalar]":
    return pa.array(keys, pa.binary())


@given(st.lists(KEYS, max_size=30), st.integers(0, 5))
def test_keys_have_the_same_hash_if_they_are_the_same(keys: list[bytes], start: int) -> None:
    found: dict[bytes, bytes] = {}
    hashes = HASHER.hashes(column([b"before"] * start + keys).slice(start))
    for key, pair in zip(keys, hashes, strict=True):
        assert found.setdefault(key, pair.tobytes()) == pair.tobytes()
    assert len(set(found.values())) == len(found)


def test_a_column_of_many_chunks_is_hashed_as_its_keys_alone() -> None:
    keys = [b"%d" % (number % 20_000) for number in range(50_000)]
    hashes = HASHER.hashes(column(keys))
    assert (hashes[:20_000] == hashes[20_000:40_000]).all()
    assert len(np.unique(hashes, axis=0)) == 20_000
    assert (HASHER.hashes(column(keys[77:78])) == hashes[77]).all()


def test_two_hashers_agree_on_nothing() -> None:
    keys = column([b"%d" % number for number in range(1000)])
    assert not (HASHER.hashes(keys) == KeyHasher().hashes(keys)).any()


@given(st.lists(st.lists(st.integers(0, 8), min_size=1, max_size=10), min_size=1, max_size=10))
def test_what_a_later_record_replaces_is_told(batches: list[list[int]]) -> None:
    latest = LatestOffsets(1 << 20)
    last: dict[int, int] = {}
    base = 0
    for numbers in batches:
        keys = [b"k%d" % number for number in numbers]
        latest.add(HASHER.hashes(column(keys)), np.arange(base, base + len(keys)))
        last |= {number: base + row for row, number in enumerate(numbers)}
        base += len(keys)
    asked = [number for numbers in batches for number in numbers] + [99]
    told = latest.are_superseded(HASHER.hashes(column([b"k%d" % n for n in asked])), np.arange(base + 1))
    assert told.tolist() == [last[number] > row for row, number in enumerate(asked[:-1])] + [False]
    assert len(latest) == len(last)


def test_it_is_full_when_its_keys_are_as_many_as_the_budget_holds() -> None:
    latest = LatestOffsets(100 * ENTRY_BYTES)
    keys = HASHER.hashes(column([b"%d" % number for number in range(99)]))
    for turn in range(10):
        latest.add(keys, np.arange(99 * turn, 99 * turn + 99))
        assert not latest.is_full
    latest.add(HASHER.hashes(column([b"another"])), np.array([990]))
    assert latest.is_full


def test_keys_that_share_half_of_their_hash_are_told_apart() -> None:
    latest = LatestOffsets(1 << 10)
    hashes = np.array([[7, 1], [7, 2], [9, 1]], np.uint64)
    latest.add(hashes, np.array([5, 3, 8]))
    assert latest.are_superseded(hashes, np.array([4, 3, 1])).tolist() == [True, False, True]
    assert latest.are_superseded(hashes[[1]], np.array([2])).tolist() == [True]
    assert latest.are_superseded(np.array([[7, 3]], np.uint64), np.array([0])).tolist() == [False]
