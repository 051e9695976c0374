import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.raft.quorum import is_majority, majority, reached_by_majority
from tests.support.raft_cluster import A, B, C, D, E


@pytest.mark.parametrize(
    ("voters", "needed"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4), (15, 8)]
)
def test_a_majority_is_more_than_half(voters: int, needed: int) -> None:
    assert majority(voters) == needed
    assert 2 * needed > voters >= 2 * (needed - 1), "one fewer would leave room for another majority"


def test_nobody_is_no_majority() -> None:
    with pytest.raises(AssertionError, match="nobody"):
        majority(0)


# The first rows are those of etcd-io/raft, quorum/testdata/majority_commit.txt.
@pytest.mark.parametrize(
    ("values", "reached"),
    [
        ([12], 12),
        ([12, 5], 5),
        ([12, 0], 0),
        ([12, 5, 0], 5),
        ([12, 5, 6], 6),
        ([5, 5, 6], 5),
        ([101, 99, 0], 99),
        ([101, 104, 103, 103], 103),
        ([101, 102, 103, 103], 102),
        ([101, 104, 103, 103, 0], 103),
        ([101, 0, 0, 103, 0], 0),
    ],
)
def test_a_majority_has_reached_the_median_or_the_value_below(values: list[int], reached: int) -> None:
    assert reached_by_majority(values) == reached


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_reached_by_majority_is_the_highest_value_that_more_than_half_have(values: list[int]) -> None:
    by_definition = max(v for v in range(10) if 2 * sum(value >= v for value in values) > len(values))
    assert reached_by_majority(values) == by_definition


@pytest.mark.parametrize(
    ("size", "of", "expected"),
    [(1, 1, True), (1, 2, False), (1, 3, False), (2, 3, True), (2, 4, False), (3, 5, True)],
)
def test_some_voters_are_a_majority_if_they_are_more_than_half(size: int, of: int, expected: bool) -> None:
    everybody = [A, B, C, D, E]
    assert is_majority(everybody[:size], everybody[:of]) is expected
