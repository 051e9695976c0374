"""Plans empty a node, or even out the load, and move no more than that takes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import InvalidConfig
from envelope.types import NodeId, StreamName
from metadata.catalog.commands import ReassignReplicas
from metadata.catalog.tables import Stream
from metadata.rebalancing import Move, emptied, evened_out, planned
from tests.support.catalogs import apply, catalog_of, create, register

NODES = tuple(NodeId(f"n{number}") for number in range(6))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Stream, ...]:
    """Streams anywhere on six nodes; some are being moved."""
    catalog = catalog_of(*(register(node) for node in NODES))
    for number in range(draw(st.integers(0, 25))):
        nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
        apply(catalog, create(f"s{number:02}", nodes=nodes))
        if draw(st.booleans()) and draw(st.booleans()):
            target = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
            row = catalog.stream(StreamName(f"s{number:02}"))
            assert row is not None
            apply(catalog, ReassignReplicas(row.name, row.incarnation, tuple(target)))
    return catalog.streams()


racks = st.fixed_dictionaries({node: st.sampled_from([None, "r1", "r2", "r3"]) for node in NODES})


def after(streams: tuple[Stream, ...], moves: list[Move]) -> dict[StreamName, tuple[NodeId, ...]]:
    """Where everything is to be when the moves are made; each is of another stream and changes something."""
    plan = {row.name: planned(row) for row in streams}
    for move in moves:
        assert plan[move.stream] == move.before != move.after
        assert len(set(move.after)) == len(move.after) == len(move.before)
        plan[move.stream] = move.after
    assert len({move.stream for move in moves}) == len(moves)
    return plan


def spread(replicas: tuple[NodeId, ...], places: dict[NodeId, str | None]) -> int:
    return len({places[node] or f"alone {node}" for node in replicas})


@given(clusters(), racks, st.sampled_from(NODES))
def test_an_emptied_node_holds_nothing_and_nothing_else_moves(
    streams: tuple[Stream, ...], places: dict[NodeId, str | None], node: NodeId
) -> None:
    plan = after(streams, emptied(node, streams, places))
    for row in streams:
        before = planned(row)
        assert node not in plan[row.name]
        assert sum(one != other for one, other in zip(before, plan[row.name], strict=True)) == (
            node in before
        )
    assert emptied(node, streams, places) == emptied(node, streams, dict(reversed(places.items())))


@given(clusters(), st.sampled_from(NODES))
def test_a_dead_node_takes_nothing(streams: tuple[Stream, ...], dead: NodeId) -> None:
    alive: dict[NodeId, str | None] = {node: None for node in NODES if node != dead}
    for moves in (evened_out(streams, alive), emptied(NODES[0], streams, alive)):
        for move in moves:
            assert dead not in set(move.after) - set(move.before)


def test_a_node_is_not_emptied_where_there_are_too_few_others() -> None:
    catalog = catalog_of(register("a"), register("b"), create("orders", nodes="ab"))
    with pytest.raises(InvalidConfig, match="orders"):
        emptied(NodeId("a"), catalog.streams(), {NodeId("a"): None, NodeId("b"): None})


@given(clusters())
def test_loads_end_with_a_difference_of_one(streams: tuple[Stream, ...]) -> None:
    settled = tuple(row for row in streams if row.target is None)
    plan = after(settled, evened_out(settled, dict.fromkeys(NODES)))
    held = Counter(node for replicas in plan.values() for node in replicas)
    loads = [held[node] for node in NODES]
    assert max(loads) - min(loads) <= 1


@given(clusters(), racks)
def test_evening_out_never_brings_replicas_of_a_stream_into_fewer_racks(
    streams: tuple[Stream, ...], places: dict[NodeId, str | None]
) -> None:
    moves = evened_out(streams, places)
    plan = after(streams, moves)
    for move in moves:
        assert spread(move.after, places) >= spread(move.before, places)
    for row in streams:
        assert row.target is None or plan[row.name] == row.target, "what moves already is left alone"
    held = Counter(node for row in streams for node in planned(row))
    found = Counter(node for replicas in plan.values() for node in replicas)
    assert sum(load**2 for load in found.values()) <= sum(load**2 for load in held.values())


@given(clusters(), racks)
def test_what_is_even_stays(streams: tuple[Stream, ...], places: dict[NodeId, str | None]) -> None:
    catalog = catalog_of(*(register(node) for node in NODES))
    plan = after(streams, evened_out(streams, places))
    for name, replicas in plan.items():
        apply(catalog, create(name, nodes=replicas))
    if all(row.target is None for row in streams):
        assert evened_out(catalog.streams(), places) == []


def test_leaders_are_evened_out_without_moving_a_replica() -> None:
    catalog = catalog_of(
        register("a"), register("b"), *(create(f"s{number}", nodes="ab") for number in range(4))
    )
    moves = evened_out(catalog.streams(), {NodeId("a"): None, NodeId("b"): None})
    assert [(move.before, move.after) for move in moves] == [(("a", "b"), ("b", "a"))] * 2
