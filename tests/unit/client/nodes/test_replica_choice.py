"""Whom a reader asks, from everything it can know."""

from collections.abc import Collection
from itertools import chain, combinations
from typing import get_args

import pytest

from jetstream.client.nodes.replica_choice import (
    LOOK_AGAIN_MS,
    Locality,
    Purpose,
    ReadFrom,
    ReadPreference,
    RouteStep,
    StreamReplicas,
    choose,
)

ALL = ("a", "b", "c")
WHOLE = StreamReplicas("i", "a", ALL, ALL)
LAGGING = StreamReplicas("i", "a", ALL, ("a", "b"))
LEADERLESS = StreamReplicas("i", None, ALL, ("a", "b"))
RACKS = {"a": "r1", "b": "r2", "c": "r2", "d": None}
RACKED = StreamReplicas(incarnation="i", leader="a", replicas=ALL, isr=ALL, read_replicas=("d",), racks=RACKS)
READ_FROM = StreamReplicas("i", "a", ("a", "b"), ("a",), ("d", "e"))


def chosen(
    known: StreamReplicas,
    purpose: Purpose,
    read_from: ReadFrom = "auto",
    shunned: Collection[str] = (),
    whereabouts: Locality = Locality(),  # noqa: B008 - a tuple
) -> set[RouteStep | None]:
    """What readers with different turns choose."""
    wish = ReadPreference(read_from, whereabouts)
    return {choose(known, purpose, wish, shunned, turn) for turn in range(12)}


def nodes(visits: Collection[RouteStep | None]) -> set[str | None]:
    return {None if visit is None else visit.node for visit in visits}


def test_readers_that_catch_up_are_spread_over_the_replicas_in_sync() -> None:
    assert nodes(chosen(WHOLE, Purpose.CATCH_UP)) == {"a", "b", "c"}
    assert nodes(chosen(LAGGING, Purpose.CATCH_UP)) == {"a", "b"}
    assert nodes(chosen(LEADERLESS, Purpose.CATCH_UP)) == {"a", "b"}


def test_read_replicas_take_their_share_of_readers_that_catch_up_and_no_others() -> None:
    assert nodes(chosen(READ_FROM, Purpose.CATCH_UP)) == {"a", "d", "e"}
    assert nodes(chosen(READ_FROM, Purpose.CATCH_UP, shunned=("a", "d"))) == {"e"}
    assert nodes(chosen(READ_FROM, Purpose.CATCH_UP, shunned=("a", "d", "e"))) == {"b"}
    assert nodes(chosen(READ_FROM, Purpose.CATCH_UP, shunned="abde")) == {"a", "b", "d", "e"}
    assert nodes(chosen(READ_FROM, Purpose.TAIL)) == {"a"}
    assert nodes(chosen(READ_FROM, Purpose.TAIL, "any")) == {"a", "d", "e"}


@pytest.mark.parametrize("read_from", get_args(ReadFrom))
@pytest.mark.parametrize("purpose", Purpose)
def test_the_same_reader_goes_to_the_same_node(purpose: Purpose, read_from: ReadFrom) -> None:
    for turn in range(6):
        assert len({choose(WHOLE, purpose, ReadPreference(read_from), (), turn) for _ in range(3)}) == 1


def test_the_nearest_replica_is_asked_where_several_would_do() -> None:
    beside_c, in_r2 = Locality("c", "r2"), Locality(rack="r2")
    assert nodes(chosen(RACKED, Purpose.CATCH_UP, whereabouts=beside_c)) == {"c"}
    assert nodes(chosen(RACKED, Purpose.CATCH_UP, whereabouts=in_r2)) == {"b", "c"}
    assert nodes(chosen(RACKED, Purpose.TAIL, "any", whereabouts=in_r2)) == {"b", "c"}
    assert nodes(chosen(RACKED, Purpose.CATCH_UP, shunned="c", whereabouts=beside_c)) == {"b"}
    assert nodes(chosen(RACKED, Purpose.CATCH_UP, shunned="bc", whereabouts=beside_c)) == {"a", "d"}


def test_who_stands_nowhere_near_a_replica_asks_any() -> None:
    for whereabouts in (Locality(), Locality("x", "r9"), Locality("x")):
        assert nodes(chosen(RACKED, Purpose.CATCH_UP, whereabouts=whereabouts)) == {"a", "b", "c", "d"}


def test_the_leader_is_asked_from_wherever_only_it_will_do() -> None:
    beside_c = Locality("c", "r2")
    assert nodes(chosen(RACKED, Purpose.TAIL, whereabouts=beside_c)) == {"a"}
    assert nodes(chosen(RACKED, Purpose.OFFSETS, "leader", whereabouts=beside_c)) == {"a"}
    assert nodes(chosen(RACKED, Purpose.CATCH_UP, "leader", whereabouts=beside_c)) == {"a"}


def test_who_has_caught_up_goes_to_the_leader_and_waits_there() -> None:
    assert chosen(WHOLE, Purpose.TAIL) == {RouteStep("a", leaves=True)}


def test_where_the_stream_ends_only_the_leader_knows_whatever_has_failed() -> None:
    for shunned in ((), ALL):
        assert chosen(WHOLE, Purpose.OFFSETS, "auto", shunned) == {RouteStep("a", leaves=True)}
    assert chosen(LEADERLESS, Purpose.OFFSETS) == {None}


@pytest.mark.parametrize("purpose", Purpose)
def test_who_wants_the_leader_gets_nobody_else(purpose: Purpose) -> None:
    for shunned in ((), ("a",), ALL):
        assert chosen(WHOLE, purpose, "leader", shunned) == {RouteStep("a", leaves=True)}
    assert chosen(LEADERLESS, purpose, "leader") == {None}


@pytest.mark.parametrize("purpose", Purpose)
def test_who_reads_from_any_replica_stays_there_and_needs_no_leader(purpose: Purpose) -> None:
    assert chosen(WHOLE, purpose, "any") == {RouteStep("a"), RouteStep("b"), RouteStep("c")}
    assert chosen(LEADERLESS, purpose, "any") == {RouteStep("a"), RouteStep("b")}


def test_a_node_that_has_just_failed_is_asked_last() -> None:
    assert nodes(chosen(WHOLE, Purpose.CATCH_UP, "auto", ("b",))) == {"a", "c"}
    assert nodes(chosen(LAGGING, Purpose.CATCH_UP, "auto", ("a", "b"))) == {"c"}, "better than none"
    assert nodes(chosen(WHOLE, Purpose.CATCH_UP, "any", ALL)) == {"a", "b", "c"}, "perhaps it works now"


def test_while_the_leader_is_away_another_replica_serves_for_a_moment() -> None:
    assert chosen(WHOLE, Purpose.TAIL, "auto", ("a",)) == {
        RouteStep("b", leaves=True, wait_ms_max=LOOK_AGAIN_MS),
        RouteStep("c", leaves=True, wait_ms_max=LOOK_AGAIN_MS),
    }
    assert nodes(chosen(LEADERLESS, Purpose.TAIL)) == {"a", "b"}


def test_who_catches_up_at_a_follower_does_not_wait_there() -> None:
    assert chosen(WHOLE, Purpose.CATCH_UP) == {
        RouteStep("a", leaves=True),
        RouteStep("b", leaves=True, wait_ms_max=0),
        RouteStep("c", leaves=True, wait_ms_max=0),
    }


def test_a_stream_with_one_replica_is_read_there() -> None:
    alone = StreamReplicas("i", "b", ("b",), ("b",))
    for purpose in Purpose:
        for read_from in get_args(ReadFrom):
            assert nodes(chosen(alone, purpose, read_from, ("b",))) == {"b"}


def test_somebody_is_always_asked_where_a_leader_is_not_needed() -> None:
    everybody = chain.from_iterable(combinations(ALL, size) for size in range(4))
    for shunned in everybody:
        for known in (WHOLE, LAGGING, LEADERLESS, StreamReplicas("i", None, ALL, ())):
            for purpose in (Purpose.CATCH_UP, Purpose.TAIL):
                assert None not in chosen(known, purpose, "auto", shunned)
                assert None not in chosen(known, purpose, "any", shunned)
