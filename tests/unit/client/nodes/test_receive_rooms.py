"""Rooms for bodies: lent again, but never while somebody looks."""

import threading

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.limits import KIB, MIB
from jetstream.client.nodes.socket_link import KEPT_BYTES_MAX, BufferPool
from tests.support.example_counts import examples

LENGTHS = st.sampled_from([1, 255 * KIB, 256 * KIB, 300 * KIB, 512 * KIB, MIB, MIB + 1, 3 * MIB])


def test_a_room_comes_back_when_the_last_view_is_gone() -> None:
    rooms = BufferPool()
    room = rooms.take(MIB)
    part = pa.py_buffer(room).slice(100, 10)
    del room
    assert rooms.kept_bytes == 0
    address = part.address - 100
    del part
    assert rooms.kept_bytes == MIB
    assert pa.py_buffer(rooms.take(600 * KIB)).address == address, "the same, for any body it is enough for"
    assert rooms.kept_bytes == MIB


def test_what_is_kept_is_bounded() -> None:
    rooms = BufferPool()
    lent = [rooms.take(4 * MIB) for _ in range(20)]
    lent.append(rooms.take(64 * MIB))
    lent.clear()
    assert rooms.kept_bytes == KEPT_BYTES_MAX


def test_a_room_may_come_back_from_another_thread() -> None:
    rooms = BufferPool()
    lent = [rooms.take(MIB) for _ in range(8)]
    thread = threading.Thread(target=lent.clear)
    thread.start()
    thread.join()
    assert rooms.kept_bytes == 8 * MIB


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(LENGTHS, st.integers(0, 4)), max_size=30))
def test_two_living_rooms_share_nothing(steps: list[tuple[int, int]]) -> None:
    rooms = BufferPool()
    living: list[tuple[memoryview, int]] = []
    for number, (length, dropped) in enumerate(steps):
        room = rooms.take(length)
        assert len(room) == length
        room[:] = bytes([number]) * length
        living.append((room, number))
        del room
        for seen, mark in living:
            assert seen[0] == seen[-1] == seen[len(seen) // 2] == mark, "C13"
        if living:
            del living[dropped % len(living)]
