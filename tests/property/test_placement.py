"""Placement spreads replicas over racks, and load over nodes."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from metadata.catalog.commands import CreateStream
from metadata.catalog.tables import Stream
from metadata.placement import (
    PlacementCandidate,
    beside_siblings,
    loads,
    place,
    place_changes,
    place_partitions,
    place_stream,
    read_replicas_beside,
    resized,
)
from tests.support.catalogs import catalog_of, create, partition, register
from tests.support.example_counts import examples

RACKS = st.sampled_from([None, "a", "b", "c"])


@st.composite
def clusters(draw: st.DrawFn) -> list[PlacementCandidate]:
    count = draw(st.integers(1, 9))
    return [
        PlacementCandidate(
            NodeId(f"n{number}"), draw(RACKS), draw(st.integers(0, 5)), draw(st.integers(0, 5))
        )
        for number in range(count)
    ]


@given(clusters(), st.data())
def test_replicas_are_on_distinct_nodes_in_as_many_racks_as_there_are(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(nodes)))
    placed = place(nodes, replicas)
    assert len(set(placed)) == len(placed) == replicas
    rack_of = {node.node_id: node.rack or node.node_id for node in nodes}
    assert set(placed) <= set(rack_of)
    racks = Counter(rack_of[node] for node in placed)
    assert len(racks) == min(replicas, len(set(rack_of.values())))
    shuffled = data.draw(st.permutations(nodes))
    assert place(shuffled, replicas) == placed, "whoever computes it finds the same"


@given(st.integers(1, 7), st.integers(1, 3), st.integers(0, 60), st.booleans())
def test_loads_differ_by_one_at_most(nodes: int, replicas: int, streams: int, racked: bool) -> None:
    count = nodes * replicas
    racks = {NodeId(f"n{number}"): f"r{number % replicas}" if racked else None for number in range(count)}
    held: Counter[NodeId] = Counter(dict.fromkeys(racks, 0))
    led: Counter[NodeId] = Counter(dict.fromkeys(racks, 0))
    for _ in range(streams):
        placed = place(
            [PlacementCandidate(node, rack, held[node], led[node]) for node, rack in racks.items()], replicas
        )
        held.update(placed)
        led[placed[0]] += 1
    assert max(held.values()) - min(held.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 2


def test_the_node_that_leads_least_is_preferred() -> None:
    nodes = [
        PlacementCandidate(NodeId("a"), leaders=2),
        PlacementCandidate(NodeId("b"), leaders=0),
        PlacementCandidate(NodeId("c"), leaders=1),
    ]
    assert place(nodes, 3) == ("b", "a", "c")


def test_too_few_nodes_are_a_typed_error() -> None:
    with pytest.raises(InvalidConfig, match="replicas: 3 wanted, 2 nodes to hold them") as caught:
        place([PlacementCandidate(NodeId("a")), PlacementCandidate(NodeId("b"))], 3)
    assert caught.value.detail == {"field": "replicas"}


def test_loads_are_counted_from_the_catalogue() -> None:
    nodes = [register(name) for name in ("n1", "n2", "n3")]
    catalog = catalog_of(
        *nodes,
        create("x", nodes=("n1", "n2")),
        create("y", nodes=("n2", "n3")),
        create("z", nodes=("n2",), read_replicas=("n3",)),
    )
    replicas, leaders = loads(catalog.streams())
    assert replicas == {"n1": 1, "n2": 3, "n3": 2}
    assert leaders == {"n1": 1, "n2": 2}


@given(clusters(), st.data())
def test_read_replicas_are_on_other_nodes_and_in_other_racks_first(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    replicas = data.draw(st.integers(1, len(nodes)))
    read_replicas = data.draw(st.integers(0, len(nodes) - replicas))
    placed = place_stream(nodes, replicas, read_replicas)
    assert placed.replicas == place(nodes, replicas)
    assert len(placed.read_replicas) == read_replicas
    holders = (*placed.replicas, *placed.read_replicas)
    assert len(set(holders)) == len(holders)
    rack_of = {node.node_id: node.rack or node.node_id for node in nodes}
    assert len({rack_of[node] for node in holders}) == min(len(holders), len(set(rack_of.values())))


@given(clusters(), st.data())
def test_another_number_of_read_replicas_moves_none_of_those_that_stay(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    names = [node.node_id for node in nodes]
    replicas = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    free = [NodeId("dead"), *(name for name in names if name not in replicas)]
    present = data.draw(st.lists(st.sampled_from(free), unique=True))
    wanted = data.draw(st.integers(0, len({*free, *present}) - (NodeId("dead") not in present)))
    found = read_replicas_beside(nodes, replicas, present, wanted)
    assert len(set(found)) == len(found) == wanted
    assert set(found).isdisjoint(replicas)
    if wanted >= len(present):
        assert set(present) <= set(found)
    else:
        assert set(found) < set(present)
        assert "dead" not in found or wanted == len(present), "who is dead goes first"


def test_too_few_nodes_for_read_replicas_are_a_typed_error() -> None:
    with pytest.raises(InvalidConfig, match="read_replicas: 2 wanted, 1 nodes to hold them") as caught:
        place_stream([PlacementCandidate(NodeId("a")), PlacementCandidate(NodeId("b"))], 1, 2)
    assert caught.value.detail == {"field": "read_replicas"}


@given(clusters(), st.integers(1, 3), st.integers(0, 6), st.integers(0, 12))
def test_partitions_of_one_stream_are_spread_whatever_else_nodes_hold(
    nodes: list[PlacementCandidate], replicas: int, present: int, more: int
) -> None:
    replicas = min(replicas, len(nodes))
    nodes = [replace(node, rack=None) for node in nodes]
    registered = [register(node.node_id) for node in nodes]
    rows: list[CreateStream] = []
    for numbers in (range(present), range(present, present + more)):
        new = [
            partition("orders", number, 20, nodes=[node.node_id for node in nodes[:replicas]])
            for number in numbers
        ]
        siblings = catalog_of(*registered, *rows).streams()
        placed = place_partitions(nodes, siblings, [command.config for command in new])
        rows += [
            replace(command, replicas=place.replicas, leader=place.replicas[0])
            for command, place in zip(new, placed, strict=True)
        ]
    led = Counter({node.node_id: 0 for node in nodes})
    held = Counter({node.node_id: 0 for node in nodes})
    for command in rows:
        led[command.leader] += 1
        held.update(command.replicas)
    assert max(held.values()) - min(held.values()) <= 1
    assert max(led.values()) - min(led.values()) <= 1 + (replicas > 1)


def test_partitions_for_which_there_are_too_few_nodes_are_a_typed_error() -> None:
    config = partition(nodes=("a", "b")).config
    with pytest.raises(InvalidConfig, match="replicas: 2 wanted"):
        place_partitions([PlacementCandidate(NodeId("a"))], (), [config])


def rows(nodes: list[PlacementCandidate], replicas: int, data: st.DataObject) -> Stream:
    """A stream with so many replicas, of which some are in sync, and with read replicas on other nodes."""
    names = data.draw(st.permutations([node.node_id for node in nodes]))
    held, read_replicas = names[:replicas], names[replicas:][: data.draw(st.integers(0, 2))]
    row = catalog_of(*map(register, names), create(nodes=held, read_replicas=read_replicas)).streams()[0]
    isr = data.draw(st.lists(st.sampled_from(row.isr), min_size=1, unique=True))
    leader = data.draw(st.sampled_from([None, *(member.node_id for member in isr)]))
    return replace(row, isr=tuple(isr), leader=leader)


@settings(max_examples=examples(200))
@given(clusters(), st.data())
def test_more_replicas_are_beside_all_that_there_are(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    row = rows(nodes, data.draw(st.integers(1, len(nodes))), data)
    alive = data.draw(st.lists(st.sampled_from(nodes), unique=True))
    count = data.draw(st.integers(len(row.replicas), 9))
    room = {node.node_id for node in alive} - {*row.replicas, *row.read_replicas}
    if count > len(row.replicas) + len(room):
        with pytest.raises(InvalidConfig, match=f"replicas: {count} wanted") as caught:
            resized(alive, row, count, row.read_replicas)
        assert caught.value.detail == {"field": "replicas"}
        return
    chosen = resized(alive, row, count, row.read_replicas)
    assert chosen[: len(row.replicas)] == row.replicas
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen[len(row.replicas) :]) <= room


@settings(max_examples=examples(200))
@given(clusters().filter(lambda nodes: len(nodes) > 1), st.data())
def test_of_fewer_replicas_the_leader_stays_then_those_in_sync(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    row = rows(nodes, data.draw(st.integers(2, len(nodes))), data)
    alive = data.draw(st.lists(st.sampled_from(nodes), unique=True))
    count = data.draw(st.integers(1, len(row.replicas) - 1))
    chosen = resized(alive, row, count, row.read_replicas)
    assert len(chosen) == count
    assert chosen == tuple(node for node in row.replicas if node in chosen), "they keep their order"
    assert row.leader in (None, *chosen)
    assert len(set(chosen) & set(row.isr_nodes)) == min(count, len(row.isr))


@given(clusters(), st.data())
def test_more_replicas_are_in_as_many_racks_as_can_be(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    first = data.draw(st.sampled_from(nodes))
    row = catalog_of(*(register(node.node_id) for node in nodes), create(nodes=(first.node_id,))).streams()[0]
    count = data.draw(st.integers(1, len(nodes)))
    chosen = resized(nodes, row, count, ())
    rack_of = {node.node_id: node.rack or node.node_id for node in nodes}
    assert len({rack_of[node] for node in chosen}) == min(count, len(set(rack_of.values())))


def test_of_replicas_in_sync_one_in_a_shared_rack_on_a_full_node_goes_first() -> None:
    nodes = [
        PlacementCandidate(NodeId("a"), "x", replicas=9),
        PlacementCandidate(NodeId("b"), "y", replicas=1),
        PlacementCandidate(NodeId("c"), "y", replicas=2),
        PlacementCandidate(NodeId("d"), "z", replicas=9),
    ]
    row = catalog_of(*map(register, "abcd"), create(nodes="bcad")).streams()[0]
    assert resized(nodes, row, 3, ()) == ("b", "a", "d"), "b leads, c shares its rack"
    assert resized(nodes, row, 2, ()) == ("b", "a"), "of equals the last"
    assert resized(nodes[:3], row, 2, ()) == ("b", "a"), "d is dead"
    led_by_d = replace(row, leader=NodeId("d"))
    assert resized(nodes, led_by_d, 1, ()) == ("d",)


@given(clusters(), st.data())
def test_replicas_and_read_replicas_that_change_together_share_no_node(
    nodes: list[PlacementCandidate], data: st.DataObject
) -> None:
    row = rows(nodes, data.draw(st.integers(1, len(nodes))), data)
    replicas = data.draw(st.none() | st.integers(1, 9))
    read_replicas = data.draw(st.none() | st.integers(0, 4))
    read_count = len(row.read_replicas) if read_replicas is None else read_replicas
    if max(replicas or 0, len(row.replicas)) + read_count > len(nodes):
        return  # refused, as the other tests say
    target, read = place_changes(nodes, row, replicas, read_replicas)
    assert (target is None, read is None) == (replicas is None, read_replicas is None)
    holders = {*row.replicas, *(target or ())}
    assert len(target or ()) == (replicas or 0)
    kept = row.read_replicas if read is None else read
    assert len(set(kept)) == read_count
    assert holders.isdisjoint(kept)


def test_partitions_that_grow_are_spread_among_themselves() -> None:
    nodes = [PlacementCandidate(NodeId(name), replicas=number) for number, name in enumerate("abcd")]
    catalog = catalog_of(*map(register, "abcd"), *(partition("orders", n, 2, nodes="a") for n in range(2)))
    first, second = catalog.partition_rows("orders")
    target = resized(beside_siblings(nodes, (first, second)), first, 2, ())
    assert target == ("a", "b")
    moved = replace(first, replicas=target)
    assert resized(beside_siblings(nodes, (moved, second)), second, 2, ()) == ("a", "c")
