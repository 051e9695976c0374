"""Who owns what: each partition once, evenly, and with the sticky assignor without needless moves."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from consumer_groups.assignment.assignors import Assignor, Owners, assign
from consumer_groups.assignment.partitions import (
    Claim,
    Generation,
    Holder,
    InstanceId,
    MemberId,
    Partition,
    StreamPartitions,
    SubscribedMember,
)
from envelope.types import NodeId, StreamName
from tests.support import group_subscribers as groups
from tests.support.group_subscribers import fewest_moves, loads, moves, owning, stream, subscriber, uneven

if TYPE_CHECKING:
    from _typeshed import TraceFunction

STICKY = Assignor.STICKY
every_assignor = pytest.mark.parametrize("assignor", Assignor)


def owned_by(owners: Owners, member: str) -> list[str]:
    return [str(one) for one, owner in owners.items() if owner == member]


@every_assignor
@given(members=groups.members(hostile=True), streams=groups.streams())
def test_each_partition_has_one_owner_who_subscribed_to_it_whatever_is_claimed(
    assignor: Assignor, members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...]
) -> None:
    owners = assign(assignor, members, streams)
    assert set(owners) == groups.wanted(members, streams)
    subscribed = {member.member_id: member.streams for member in members}
    assert all(one.stream in subscribed[owner] for one, owner in owners.items())


@every_assignor
@given(
    members=groups.members(hostile=True), streams=groups.streams(), chance=st.randoms(use_true_random=False)
)
def test_the_order_in_which_members_and_streams_are_named_does_not_matter(
    assignor: Assignor,
    members: tuple[SubscribedMember, ...],
    streams: tuple[StreamPartitions, ...],
    chance: random.Random,
) -> None:
    mixed = chance.sample(members, len(members)), chance.sample(streams, len(streams))
    assert list(assign(assignor, *mixed).items()) == list(assign(assignor, members, streams).items())


@pytest.mark.parametrize("assignor", [Assignor.ROUND_ROBIN, STICKY])
@given(members=groups.members(alike=True, hostile=True), streams=groups.streams())
def test_loads_differ_by_one_at_most_where_all_subscribe_alike(
    assignor: Assignor, members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...]
) -> None:
    found = loads(members, assign(assignor, members, streams)).values()
    assert max(found) - min(found) <= 1


@given(members=groups.members(alike=True), streams=groups.streams())
def test_range_shares_out_each_stream_evenly_in_neighbouring_partitions(
    members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...]
) -> None:
    for each in streams:
        owners = assign(Assignor.RANGE, members, [each])
        runs = sum(owners[one] != owners.get(Partition(one.stream, one.number - 1)) for one in owners)
        assert runs == len(set(owners.values()))
        if owners:
            found = loads(members, owners).values()
            assert max(found) - min(found) <= 1


def test_range_gives_the_extra_partitions_of_each_stream_to_the_first_members() -> None:
    members = [subscriber("b", "s", "t"), subscriber("a", "s", "t")]
    owners = assign(Assignor.RANGE, members, [stream("t", 3), stream("s", 3)])
    assert owned_by(owners, "a") == ["s[0]", "s[1]", "t[0]", "t[1]"]
    assert owned_by(owners, "b") == ["s[2]", "t[2]"]


def test_round_robin_deals_all_partitions_in_turn_and_leaves_out_who_does_not_subscribe() -> None:
    members = [subscriber("a", "s"), subscriber("b", "s", "t"), subscriber("c", "t")]
    owners = assign(Assignor.ROUND_ROBIN, members, [stream("s", 3), stream("t", 3)])
    assert owned_by(owners, "a") == ["s[0]", "s[2]"]
    assert owned_by(owners, "b") == ["s[1]", "t[0]", "t[2]"]
    assert owned_by(owners, "c") == ["t[1]"]


@every_assignor
def test_a_static_member_keeps_its_place_when_it_comes_back_under_another_id(assignor: Assignor) -> None:
    def static(member: str, instance: str) -> SubscribedMember:
        return replace(subscriber(member, "s"), instance_id=InstanceId(instance))

    before = assign(assignor, [static("z", "one"), static("y", "two")], [stream("s", 5)])
    after = assign(assignor, [static("x", "one"), static("y", "two")], [stream("s", 5)])
    assert owned_by(before, "z") == owned_by(after, "x")


# --- sticky -------------------------------------------------------------------------------------------


@given(members=groups.members(hostile=True), streams=groups.streams())
def test_sticky_leaves_nobody_with_two_less_than_one_who_could_give(
    members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...]
) -> None:
    assert not uneven(members, assign(STICKY, members, streams))


@given(members=groups.members(hostile=True), streams=groups.streams())
def test_sticky_moves_nothing_if_nothing_has_changed(
    members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...]
) -> None:
    owners = assign(STICKY, members, streams)
    assert assign(STICKY, owning(members, owners), streams) == owners


@given(
    members=groups.members(alike=True, hostile=True),
    streams=groups.streams(),
    leaving=st.integers(0, 3),
    joining=st.integers(0, 3),
)
def test_sticky_moves_no_more_than_it_must_when_members_join_and_leave(
    members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...], leaving: int, joining: int
) -> None:
    before = assign(STICKY, members, streams)
    new = [SubscribedMember(MemberId(f"new{number}"), members[0].streams) for number in range(joining)]
    left = (*owning(members, before)[leaving:], *new)
    if not left:
        return
    after = assign(STICKY, left, streams)
    kept = {one: owner for one, owner in before.items() if owner in {member.member_id for member in left}}
    assert moves(kept, after) == fewest_moves(left, len(before))


@example(
    members=(
        subscriber("m00", "s1"),
        subscriber("m01", "s2"),
        subscriber("m02", "s2", "s3"),
        subscriber("m03", "s1", "s3"),
    ),
    streams=(stream("s1", 5), stream("s2", 3), stream("s3", 3)),
    grown=4,
)
@given(members=groups.members(), streams=groups.streams(), grown=st.integers(1, 5))
def test_sticky_moves_no_partition_to_one_that_had_more(
    members: tuple[SubscribedMember, ...], streams: tuple[StreamPartitions, ...], grown: int
) -> None:
    before = assign(STICKY, members, streams)
    more = [replace(each, count=each.count + grown) for each in streams[:1]] + list(streams[1:])
    after = assign(STICKY, owning(members, before), more)
    load = loads(members, after)
    moved = [one for one in before if after[one] != before[one]]
    givers = {(one.stream, before[one]) for one in moved}
    takers = {(one.stream, after[one]) for one in moved}
    assert not givers & takers, "who reads other streams may pass on its load, but not of one stream"
    assert all(load[after[one]] <= load[before[one]] + 1 for one in moved)


def test_of_two_claims_of_one_partition_the_higher_generation_owns() -> None:
    one = Partition(StreamName("s"), 0)
    zombie = subscriber("a", "s", owned=[Claim(one, Generation(3))])
    owner = subscriber("b", "s", owned=[Claim(one, Generation(4))])
    assert assign(STICKY, [zombie, owner], [stream("s", 1)]) == {one: owner.member_id}


def test_a_partition_that_moves_goes_back_to_who_had_it_before_to_who_is_near() -> None:
    ones = [Partition(StreamName("s"), number) for number in range(2)]
    owner = near("a", "n1", "r1", *(Claim(one, Generation(2)) for one in ones))
    former = near("b", "n9", "r9", Claim(ones[0], Generation(1)))
    assert assign(STICKY, [owner, former], [held("n1/r1", "n9/r9")])[ones[0]] == "b"


def near(name: str, node: str, rack: str, *owned: Claim) -> SubscribedMember:
    return replace(subscriber(name, "s", owned=owned), node=NodeId(node), rack=rack)


def held(*racks_of_nodes: str) -> StreamPartitions:
    """Return a stream whose partitions are on one node each: ``node/rack``."""
    holders = tuple(
        (Holder(NodeId(node), rack),) for node, _, rack in (x.partition("/") for x in racks_of_nodes)
    )
    return StreamPartitions(StreamName("s"), len(holders), holders)


def test_a_partition_that_is_free_goes_to_a_member_on_its_holders_node_then_in_its_rack() -> None:
    members = [near("a", "n9", "r1"), near("b", "n1", "r1"), near("c", "n7", "r2")]
    owners = assign(STICKY, members, [held("n1/r1", "n5/r1", "n3/r3")])
    assert owners == {Partition(StreamName("s"), index): who for index, who in enumerate("bac")}


def test_who_must_give_up_something_keeps_what_is_near() -> None:
    claims = [Claim(Partition(StreamName("s"), index), Generation(1)) for index in range(4)]
    members = [near("a", "n1", "r1", *claims), near("b", "n2", "r2")]
    owners = assign(STICKY, members, [held("n2/r2", "n1/r1", "n2/r2", "n1/r1")])
    assert owned_by(owners, "a") == ["s[1]", "s[3]"]


# --- many ---------------------------------------------------------------------------------------------


def crowd(partitions: int, *, alike: bool) -> tuple[list[SubscribedMember], list[StreamPartitions]]:
    """Return 60 members of 40 streams, where the first members claim everything."""
    chance = random.Random(7)
    names = [StreamName(f"s{number:02}") for number in range(40)]
    streams = [StreamPartitions(name, partitions // len(names)) for name in names]
    members = []
    for number in range(60):
        chosen = names if alike else chance.sample(names, 20)
        owned = [
            Claim(Partition(name, index), Generation(number))
            for name in chosen[:20]
            for index in range(streams[0].count if number < 3 else 0)
        ]
        members.append(subscriber(f"m{number:02}", *chosen, owned=owned))
    return members, streams


def lines_run(work: Callable[[], object]) -> int:
    """Count the lines of Python that ``work`` runs: what it costs, by no clock."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> "TraceFunction":
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@every_assignor
@pytest.mark.parametrize("alike", [True, False])
def test_the_work_grows_with_the_partitions_and_not_faster(assignor: Assignor, *, alike: bool) -> None:
    few, many = crowd(1_200, alike=alike), crowd(4_800, alike=alike)
    assert lines_run(lambda: assign(assignor, *many)) < 4.5 * lines_run(lambda: assign(assignor, *few))


@every_assignor
@pytest.mark.parametrize("alike", [True, False])
def test_ten_thousand_partitions_are_shared_out(assignor: Assignor, *, alike: bool) -> None:
    members, streams = crowd(10_000, alike=alike)
    owners = assign(assignor, members, streams)
    assert len(owners) == 10_000
    if assignor is STICKY:
        assert not uneven(members, owners)
