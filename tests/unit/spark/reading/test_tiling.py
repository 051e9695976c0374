"""A range is all there, in order and once, or that is seen."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError
from jetstream.spark.reading.tiling import RangeCheck

START, END = 10, 30


def checked(groups: list[list[int]], reached: int = END) -> RangeCheck:
    check = RangeCheck("orders", START, END)
    for group in groups:
        check.take(np.array(group, dtype=np.int64))
    check.finish(reached)
    return check


@given(present=st.sets(st.integers(START, END - 1)), cuts=st.sets(st.integers(START, END)))
def test_what_comes_in_order_is_counted(present: set[int], cuts: set[int]) -> None:
    edges = [START, *sorted(cuts), END]
    groups = [sorted(each for each in present if left <= each < right) for left, right in pairwise(edges)]
    assert checked([group for group in groups if group]).missing == END - START - len(present)


@given(offsets=st.lists(st.integers(START - 2, END + 2), min_size=1, max_size=8), cut=st.integers(0, 8))
def test_what_is_out_of_order_or_out_of_range_is_seen(offsets: list[int], cut: int) -> None:
    is_right = all(START <= each < END for each in offsets) and offsets == sorted(set(offsets))
    groups = [group for group in (offsets[:cut], offsets[cut:]) if group]
    if is_right:
        checked(groups)
    else:
        with pytest.raises(CorruptDataError, match="comes next"):
            checked(groups)


@pytest.mark.parametrize("reached", [START, END - 1, END + 1])
def test_an_end_that_is_none_is_seen(reached: int) -> None:
    with pytest.raises(CorruptDataError, match=f"ended at offset {reached}"):
        checked([list(range(START, END))], reached)


def test_what_is_known_to_be_gone_is_not_missing() -> None:
    check = RangeCheck("orders", START, END)
    check.take(np.array([10, 11]))
    check.skip(20)
    check.take(np.array([20, 21, 25]))
    check.skip(END)
    check.finish(END)
    assert (check.place, check.missing) == (END, 3)
