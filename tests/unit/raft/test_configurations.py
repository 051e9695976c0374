"""Who decides: majorities, of either side while the voters change, and the bytes of a configuration."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import CorruptDataError
from envelope.types import NodeId
from metadata.raft.configuration import (
    CONFIGURATION_ID,
    Configuration,
    configuration_in,
    decode_configuration,
    encode_configuration,
    reached_by_majority,
)
from tests.support.raft_cluster import A, B, C, D, E

EVERYBODY = (A, B, C, D, E)

names = st.sets(st.sampled_from(EVERYBODY)).map(lambda some: tuple(sorted(some)))
configurations = st.builds(
    lambda voters, outgoing, learners: Configuration(
        voters, outgoing, tuple(name for name in learners if name not in voters)
    ),
    names.filter(bool),
    names,
    names,
)


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
    [(0, 1, False), (1, 1, True), (1, 2, False), (1, 3, False), (2, 3, True), (2, 4, False), (3, 5, True)],
)
def test_some_voters_are_a_majority_if_they_are_more_than_half(size: int, of: int, expected: bool) -> None:
    assert Configuration(EVERYBODY[:of]).is_decided_by(EVERYBODY[:size]) is expected


def test_nobody_is_no_majority() -> None:
    with pytest.raises(AssertionError, match="nobody"):
        Configuration(()).is_decided_by(EVERYBODY)


@pytest.mark.parametrize(
    ("some", "expected"),
    [((A, B), False), ((D, E), False), ((A, D, E), False), ((A, B, D, E), True), ((B, C, E), True)],
)
def test_while_voters_change_either_side_has_to_agree(some: tuple[NodeId, ...], expected: bool) -> None:
    assert Configuration((C, D, E), outgoing=(A, B, C)).is_decided_by(some) is expected


@given(configurations, st.fixed_dictionaries({name: st.integers(0, 5) for name in EVERYBODY}))
def test_what_is_reached_is_decided_by_those_that_have_it(
    configuration: Configuration, values: dict[NodeId, int]
) -> None:
    reached = configuration.reached(values.__getitem__)
    assert configuration.is_decided_by([name for name in EVERYBODY if values[name] >= reached])
    assert not configuration.is_decided_by([name for name in EVERYBODY if values[name] > reached])


@given(configurations, configurations)
def test_no_step_of_a_change_has_a_majority_without_one_of_the_step_before(
    before: Configuration, after: Configuration
) -> None:
    first = before.final.followed_by(after.voters, after.learners)
    for step, following in ((before.final, first), (first, first.final)):
        for some in _subsets(EVERYBODY):
            others = [name for name in EVERYBODY if name not in some]
            assert not (step.is_decided_by(some) and following.is_decided_by(others))
    assert first.final == after.final


@given(configurations)
def test_learners_decide_nothing(configuration: Configuration) -> None:
    assert not configuration.is_decided_by(configuration.members.difference(configuration.electorate))


@given(configurations)
def test_decoding_is_the_inverse_of_encoding(configuration: Configuration) -> None:
    payload = encode_configuration(configuration)
    assert (decode_configuration(payload), configuration_in(payload)) == (configuration, configuration)


@pytest.mark.parametrize("payload", [b"", b"x" * 40, bytes(15), b"\0" * 15 + b"\1{}"])
def test_other_entries_are_no_configurations(payload: bytes) -> None:
    assert configuration_in(payload) is None


@pytest.mark.parametrize(
    "rest",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"voters":[],"outgoing":[],"learners":[]}',
        b'{"voters":["b","a"],"outgoing":[],"learners":[]}',
        b'{"voters":["a","a"],"outgoing":[],"learners":[]}',
        b'{"voters":["a"],"outgoing":[],"learners":["a"]}',
        b'{"voters":["a"],"outgoing":[],"learners":[], "more":1}',
        b'{"voters":[1],"outgoing":[],"learners":[]}',
        b'{"voters":"a","outgoing":[],"learners":[]}',
    ],
)
def test_a_configuration_that_no_leader_makes_is_damage(rest: bytes) -> None:
    with pytest.raises(CorruptDataError, match="configuration"):
        configuration_in(CONFIGURATION_ID + rest)


def _subsets(of: tuple[NodeId, ...]) -> list[list[NodeId]]:
    return [[name for bit, name in enumerate(of) if number >> bit & 1] for number in range(1 << len(of))]
