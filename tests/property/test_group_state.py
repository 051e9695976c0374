"""Whatever is asked of a group, its laws hold; what was durable reads back, what was damaged is refused."""

import json
from collections.abc import Callable, Iterator
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumer_groups.assignment.partitions import InstanceId, MemberId
from consumer_groups.coordinator.events import PartitionsChanged, Persist
from consumer_groups.coordinator.group_state import GroupState
from consumer_groups.shard.group_json import from_json, to_json
from envelope.errors import CorruptDataError
from envelope.types import StreamName
from tests.support.group_coordination import SECOND, Group, join

CLIENTS = ("a", "b", "c", "d")
STREAMS = ("orders", "clicks", "later")
Step = Callable[[Group], object]


def joining(client: str, request: int, streams: frozenset[str], instance: str | None) -> Step:
    instance_id = None if instance is None else InstanceId(instance)
    return lambda group: group.give(join(client, *streams, request=request, instance_id=instance_id))


def release(number: int, share: int) -> Step:
    def step(group: Group) -> None:
        members = sorted(group.state.members)
        if members:
            member = members[number % len(members)]
            group.release(member, group.state.shares()[member].gives_up[:share])

    return step


def leave(number: int) -> Step:
    return lambda group: group.leave(sorted([*group.state.members, MemberId("none")])[number])


steps = st.one_of(
    st.builds(
        joining,
        st.sampled_from(CLIENTS),
        st.integers(1, 4),
        st.frozensets(st.sampled_from(STREAMS), min_size=1),
        st.sampled_from((None, None, "i", "j")),
    ),
    st.builds(release, st.integers(0, 3), st.integers(0, 9)),
    st.builds(leave, st.just(0)),
    st.builds(
        lambda name, count: lambda group: group.partition(**{name: count}),
        st.sampled_from(STREAMS),
        st.integers(0, 6),
    ),
    st.sampled_from(STREAMS).map(
        lambda name: lambda group: group.give(PartitionsChanged((), (StreamName(name),)))
    ),
    st.integers(1, 12).map(lambda seconds: lambda group: group.pass_time(seconds * SECOND)),
)


def after(script: list[Step]) -> Group:
    """Return the group after these steps; what is durable was read back at each."""
    group = Group()
    for step in script:
        step(group)
    return group


@given(st.lists(steps, max_size=12))
def test_generations_increase_and_no_partition_that_somebody_wants_lies_idle(script: list[Step]) -> None:
    group = Group()
    for step in script:
        before = group.state
        step(group)
        assert group.state.generation >= before.generation
        assert group.state in (before, group.durable)
        assert not group.state.problems()
        held = {partition for share in group.state.shares().values() for partition, _ in share.keeps}
        held |= {partition for share in group.state.shares().values() for partition, _ in share.gives_up}
        assert held == group.state.grants.keys() >= group.state.target.keys()


@given(st.lists(steps, max_size=12))
def test_a_group_in_which_everybody_gives_up_what_it_is_asked_for_comes_to_rest(script: list[Step]) -> None:
    group = after(script)
    group.settle()
    assert {one: grant.member_id for one, grant in group.state.grants.items()} == group.state.target


@given(st.lists(steps, max_size=12))
def test_a_group_reads_back_as_it_was_and_goes_on_in_the_same_way(script: list[Step]) -> None:
    group = after(script)
    if group.durable is None:
        return
    again = from_json(to_json(group.durable))
    assert again == group.durable
    assert to_json(again) == to_json(group.durable)
    for state in (again, group.durable):
        other = Group(state=state)
        (persist, *_) = other.machine.handle(join("new", "orders"), other.now)
        assert isinstance(persist, Persist)
        assert persist.state.generation == group.state.generation + 1


def sample() -> GroupState:
    group = Group()
    group.join("a", instance_id=InstanceId("one"), node="n1", rack="r1")
    group.join("b")
    group.join("c")
    group.leave("c.1")
    return group.state


def test_the_json_of_a_group_is_what_its_format_says() -> None:
    row = json.loads(to_json(sample()))
    assert row == {
        "version": 1,
        "name": "readers",
        "assignor": "sticky",
        "generation": 4,
        "members": [
            {
                "member_id": "a.1",
                "client": "a",
                "request": 1,
                "streams": ["orders"],
                "session_timeout_ns": 10_000_000_000,
                "rebalance_timeout_ns": 20_000_000_000,
                "instance_id": "one",
                "node": "n1",
                "rack": "r1",
                "assigned": 4,
            },
            row["members"][1] | {"member_id": "b.1", "client": "b", "instance_id": None, "assigned": 2},
        ],
        "partitions": {"orders": [[0, 1, 0], [0, 1, 0], [0, 1, 1], [0, 1, 1]]},
        "gone": [["c", 1]],
    }


def places(value: object) -> Iterator[tuple[dict[str, object] | list[object], str | int]]:
    """Yield every place of a value of JSON: what holds it, and its key there."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in pairs:
        yield cast("dict[str, object]", value), key
        yield from places(each)


junk = st.sampled_from(
    [
        None,
        True,
        1.5,
        -1,
        0,
        1,
        2,
        99,
        10**30,
        "",
        "a.1",
        "b.1",
        "orders",
        "\ud800",
        "a\n",
        [],
        [0],
        {},
        {"x": 1},
    ]
)


@given(number=st.integers(0, 200), value=junk, drop=st.booleans())
def test_damaged_json_is_refused_or_is_a_group_without_contradictions(
    number: int, value: object, drop: bool
) -> None:
    row = json.loads(to_json(sample()))
    found = list(places(row))
    inside, key = found[number % len(found)]
    if drop:
        del inside[key]  # type: ignore[arg-type] # of its own kind
    else:
        inside[key] = value  # type: ignore[index] # likewise
    try:
        state = from_json(json.dumps(row).encode())
    except CorruptDataError:
        return
    assert not state.problems()
    assert from_json(to_json(state)) == state


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        to_json(sample())[:-1],
        to_json(sample()).replace(b'"version":1', b'"version":2'),
        to_json(sample()).replace(b'"version":1', b'"version":1,"version":1'),
        to_json(sample()).replace(b'"generation":4', b'"generation":1'),
        to_json(sample()).replace(b'"b.1"', b'"a.1"'),
        to_json(sample()).replace(b"[0,1,1]", b"[null,1,1]"),
        to_json(sample()).replace(b"[0,1,1]", b"[null,null,1]"),
        to_json(sample()).replace(b'["c",1]', b'["a",1]'),
        to_json(sample()).replace(b'["c",1]', b'["c",1],["c",2]'),
        to_json(sample()).replace(b'"instance_id":null', b'"instance_id":"one"'),
        to_json(sample()).replace(b'"sticky"', b'"fair"'),
        to_json(sample()).replace(b'"request":1', b'"request":true'),
        to_json(sample()).replace(b'"client":"a"', rb'"client":"\ud800"'),
        to_json(sample()).replace(b'"partitions":{', b'"partitions":{"clicks":[[null,1,null]],'),
    ],
)
def test_what_is_no_group_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptDataError):
        from_json(value)
