from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from envelope.types import Offset
from jetstream.log.segments.corrupt_ranges import OffsetRange, above, below, with_range


def offsets(ranges: tuple[OffsetRange, ...]) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))), st.integers(0, 30))
def test_ranges_are_the_sets_of_their_offsets(added: list[tuple[int, int]], bound: int) -> None:
    ranges: tuple[OffsetRange, ...] = ()
    expected: set[int] = set()
    for start, end in added:
        ranges = with_range(ranges, Offset(start), Offset(end))
        expected |= set(range(start, end))
    assert offsets(ranges) == expected
    assert all(start < end for start, end in ranges)
    assert all(before[1] < after[0] for before, after in pairwise(ranges))
    assert offsets(above(ranges, Offset(bound))) == {offset for offset in expected if offset >= bound}
    assert offsets(below(ranges, Offset(bound))) == {offset for offset in expected if offset < bound}
