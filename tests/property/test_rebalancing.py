"""Plans empty a node, or even out the load, and move no more than that takes."""

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope.errors import InvalidConfig
from envelope.types import NodeId, StreamName
from metadata.catalog.commands import ReassignReplicas
from metadata.catalog.tables import Stream
from metadata.rebalancing import PlannedMove, emptied, evened_out, planned
from tests.support.catalogs import apply, catalog_of, create, refusal, register

NODES = tuple(NodeId(f"n{number}") for number in range(6))


@st.composite
def clusters(draw: st.DrawFn) -> tuple[Stream, ...]:
    """Streams anywhere on six nodes, but not on all of them; some are being moved."""
    catalog = catalog_of(*(register(node) for node in NODES))
    for number in range(draw(st.integers(0, 25))):
        nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True))
        others = [node for node in NODES if node not in nodes]
        read = draw(st.lists(st.sampled_from(others), max_size=5 - len(nodes), unique=True))
        apply(catalog, create(f"s{number:02}", nodes=nodes, read_replicas=read))
        if draw(st.booleans()) and draw(st.booleans()):
            free = [node for node in NODES if node not in read]
            target = draw(st.lists(st.sampled_from(free), min_size=1, max_size=4, unique=True))
            if read and len({*nodes, *target, *read}) == len(NODES):
                continue
            row = catalog.stream(StreamName(f"s{number:02}"))
            assert row is not None
            apply(catalog, ReassignReplicas(row.name, row.incarnation, tuple(target)))
    return catalog.streams()


racks = st.fixed_dictionaries({node: st.sampled_from([None, "r1", "r2", "r3"]) for node in NODES})


@dataclass(frozen=True)
class Holders:
    """Where one stream is to be."""

    replicas: tuple[NodeId, ...]
    read_replicas: tuple[NodeId, ...]

    @property
    def all(self) -> tuple[NodeId, ...]:
        return self.replicas + self.read_replicas


def present(row: Stream) -> Holders:
    return Holders(planned(row), row.read_replicas)


def after(streams: tuple[Stream, ...], moves: list[PlannedMove]) -> dict[StreamName, Holders]:
    """Where everything is to be when the moves are made; each is of another stream and changes something."""
    plan = {row.name: present(row) for row in streams}
    for move in moves:
        then = Holders(move.after, move.read_after)
        assert plan[move.stream] == Holders(move.before, move.read_before) != then
        assert len(set(then.all)) == len(then.all)
        assert len(move.after) == len(move.before)
        assert len(move.read_after) == len(move.read_before)
        plan[move.stream] = then
    assert len({move.stream for move in moves}) == len(moves)
    return plan


def accepted(streams: tuple[Stream, ...], moves: list[PlannedMove]) -> bool:
    """Whether the catalogue takes them all."""
    catalog = catalog_of(*(register(node) for node in NODES))
    for row in streams:
        apply(catalog, create(row.name, nodes=row.settled_replicas, read_replicas=row.read_replicas))
        if row.target is not None:
            made = catalog.stream(row.name)
            assert made is not None
            apply(catalog, ReassignReplicas(row.name, made.incarnation, row.target))
    lives = {row.name: row.incarnation for row in catalog.streams()}
    commands = [
        ReassignReplicas(move.stream, lives[move.stream], move.after, move.read_after) for move in moves
    ]
    return all(refusal(apply(catalog, command)) is None for command in commands)


def spread(replicas: tuple[NodeId, ...], places: dict[NodeId, str | None]) -> int:
    return len({places[node] or f"alone {node}" for node in replicas})


@given(clusters(), racks, st.sampled_from(NODES))
def test_an_emptied_node_holds_nothing_and_nothing_else_moves(
    streams: tuple[Stream, ...], places: dict[NodeId, str | None], node: NodeId
) -> None:
    plan = after(streams, emptied(node, streams, places))
    for row in streams:
        before = present(row).all
        assert node not in plan[row.name].all
        changed = sum(one != other for one, other in zip(before, plan[row.name].all, strict=True))
        assert changed == (node in before)
    assert accepted(streams, emptied(node, streams, places))
    assert emptied(node, streams, places) == emptied(node, streams, dict(reversed(places.items())))


@given(clusters(), st.sampled_from(NODES))
def test_a_dead_node_takes_nothing(streams: tuple[Stream, ...], dead: NodeId) -> None:
    alive: dict[NodeId, str | None] = {node: None for node in NODES if node != dead}
    few = tuple(row for row in streams if len({*row.holders, *planned(row)}) < len(alive))
    for moves in (evened_out(streams, alive), emptied(NODES[0], few, alive)):
        for move in moves:
            before, then = (*move.before, *move.read_before), (*move.after, *move.read_after)
            assert dead not in set(then) - set(before)


def test_a_node_is_not_emptied_where_there_are_too_few_others() -> None:
    catalog = catalog_of(register("a"), register("b"), create("orders", nodes="ab"))
    with pytest.raises(InvalidConfig, match="orders"):
        emptied(NodeId("a"), catalog.streams(), {NodeId("a"): None, NodeId("b"): None})


@given(clusters())
def test_loads_end_with_a_difference_of_one(streams: tuple[Stream, ...]) -> None:
    settled = tuple(row for row in streams if row.target is None)
    plan = after(settled, evened_out(settled, dict.fromkeys(NODES)))
    held = Counter(node for holders in plan.values() for node in holders.all)
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
        assert row.target is None or plan[row.name] == present(row), "what moves already is left alone"
    assert accepted(streams, moves)
    held = Counter(node for row in streams for node in present(row).all)
    found = Counter(node for holders in plan.values() for node in holders.all)
    assert sum(load**2 for load in found.values()) <= sum(load**2 for load in held.values())


@given(clusters(), racks)
def test_what_is_even_stays(streams: tuple[Stream, ...], places: dict[NodeId, str | None]) -> None:
    catalog = catalog_of(*(register(node) for node in NODES))
    plan = after(streams, evened_out(streams, places))
    for name, holders in plan.items():
        apply(catalog, create(name, nodes=holders.replicas, read_replicas=holders.read_replicas))
    if all(row.target is None for row in streams):
        assert evened_out(catalog.streams(), places) == []


def test_leaders_are_evened_out_without_moving_a_replica() -> None:
    catalog = catalog_of(
        register("a"), register("b"), *(create(f"s{number}", nodes="ab") for number in range(4))
    )
    moves = evened_out(catalog.streams(), {NodeId("a"): None, NodeId("b"): None})
    assert [(move.before, move.after) for move in moves] == [(("a", "b"), ("b", "a"))] * 2
