"""The parts of the simulated cluster that no product code is in do what it is built on."""

from dataclasses import replace
from random import Random

import pytest

from envelope.types import LeaderEpoch, NodeId, Offset, StreamName
from tests.simulation.disk_state import DiskState
from tests.simulation.network import Network, Weather
from tests.simulation.replica.bus import Bus
from tests.simulation.replica.log_image import Batch, LogImage
from tests.simulation.replica.messages import BusMessage, Message, Ping, Publish
from tests.simulation.replica.service_world import ServiceWorld
from tests.simulation.replica.swarm import LEASE, draw, with_read_replicas
from tests.simulation.replica.world import World
from tests.simulation.replica.writer import Done, Full, LogWriter, Report, Sync, Write
from tests.simulation.timeline import Timeline
from tests.simulation.trace import Trace

_LONG = 10**12


def _batches(*sizes: int, epoch: int = 1) -> tuple[Batch, ...]:
    made: list[Batch] = []
    for size in sizes:
        base = made[-1].next if made else Offset(0)
        made.append(Batch(base, LeaderEpoch(epoch), tuple(f"{base + row}" for row in range(size))))
    return tuple(made)


def _image(*batches: Batch) -> LogImage:
    image = LogImage(StreamName("s1"))
    for batch in batches:
        image.append(batch)
    return image


def _writer(seed: int) -> tuple[World, LogImage, LogWriter, DiskState, list[Report]]:
    rng = Random(seed)
    world = ServiceWorld(rng, draw(rng, frugal=False), Trace())
    image, disk, reports = LogImage(StreamName("s1")), DiskState(), list[Report]()
    writer = LogWriter(world, image, disk, reports.append)
    return world, image, writer, disk, reports


def test_a_power_loss_leaves_what_was_synced_and_a_prefix_of_whole_batches() -> None:
    kept = set()
    for seed in range(60):
        _, image, writer, _, reports = _writer(seed)
        image.append(_batches(2)[0])
        image.sync()
        for batch in _batches(2, 3, 1)[1:]:
            image.append(batch)
        writer.crash(power=True)
        assert reports == []
        assert image.durable_end == image.log_end
        kept.add(image.log_end)
    assert kept == {2, 5, 6}


def test_a_crash_without_a_power_loss_leaves_all_that_was_written() -> None:
    for seed in range(20):
        _, image, writer, _, _ = _writer(seed)
        for batch in _batches(2, 3):
            image.append(batch)
        writer.crash(power=False)
        assert image.log_end == 5


def test_an_epoch_that_has_begun_stays_through_a_power_loss_and_everything_before_it_too() -> None:
    image = _image(*_batches(2))
    image.begin_epoch(LeaderEpoch(4))
    image.lose_power(0)
    assert (image.log_end, image.epochs.last) == (2, 4)


def test_a_cut_falls_on_a_boundary_and_forgets_epochs_from_there_on() -> None:
    image = _image(*_batches(2, 3))
    image.begin_epoch(LeaderEpoch(4))
    image.cut(4)
    assert (image.log_end, image.durable_end, image.epochs.last) == (2, 2, 1)
    assert [image.is_boundary(offset) for offset in (0, 1, 2, 3)] == [True, False, True, False]


def test_records_are_found_by_offset_also_after_the_log_start_has_moved() -> None:
    image = _image(*_batches(2, 3, 1))
    assert image.move_start(Offset(2)) == ["0", "1"]
    assert image.records(1, 4) == [(1, "2"), (1, "3")]
    assert [batch.base for batch in image.batches_from(3)] == [5]
    assert image.offsets() == {"2": 2, "3": 3, "4": 4, "5": 5}


def test_a_write_is_told_before_its_sync_and_a_full_disk_refuses_what_was_asked_for_until_it_is_told() -> (
    None
):
    world, image, writer, disk, reports = _writer(1)
    one, other = _batches(2, 1)
    writer.append((one,))
    while world.timeline.take_next(_LONG // 1000) and len(reports) < 2:
        pass
    assert [type(report.job) for report in reports if isinstance(report, Done)] == [Write, Sync]
    disk.full = True
    writer.append((other,))
    while len(reports) < 3:
        assert world.timeline.take_next(_LONG)
    assert isinstance(reports[2], Full)
    disk.full = False
    writer.append((Batch(other.next, other.epoch, ("later",)),))
    writer.told(reports[2])
    while len(reports) < 5 and world.timeline.take_next(_LONG):
        pass
    assert image.log_end == 2


class _Node:
    """Hears of its connections."""

    def __init__(self, *, alive: bool = True) -> None:
        self.alive = alive
        self.heard: list[str] = []

    def peer_lost(self, peer: NodeId, *, refused: bool) -> None:
        self.heard.append(f"lost {peer}{' refused' if refused else ''}")

    def peer_found(self, peer: NodeId) -> None:
        self.heard.append(f"found {peer}")


def _connected(**nodes: _Node) -> tuple[World, list[Message]]:
    """A world whose connections between these nodes are reliable, and what they say to each other."""
    rng = Random(1)
    names = tuple(NodeId(name) for name in nodes)
    weather = Weather(1_000, in_order=True)
    swarm = replace(draw(rng, frugal=False), nodes=names, streams=(), reliable=True, weather=weather)
    world, received = ServiceWorld(rng, swarm, Trace()), list[Message]()
    world.connections.nodes = dict(zip(names, nodes.values(), strict=True))
    for name in nodes:
        world.network.connect(
            name, lambda message: received.append(message) if isinstance(message, Ping) else None
        )
    return world, received


def _wait(world: World, duration: int) -> None:
    end = world.timeline.now + duration
    while world.timeline.take_next(end):
        pass


def test_a_reliable_connection_that_loses_something_breaks_and_both_ends_hear_of_it_until_it_is_back() -> (
    None
):
    one, other = _Node(), _Node()
    world, received = _connected(a=one, b=other)
    link = ("a", "b")
    world.network.block(link)
    world.network.send(link, Ping(NodeId("a")))
    world.network.send(("b", "a"), Ping(NodeId("b")))
    _wait(world, LEASE)
    assert (one.heard, other.heard, received) == (["lost b"], ["lost a"], [])
    world.network.unblock(link)
    _wait(world, LEASE)
    assert (one.heard, other.heard) == (["lost b", "found b"], ["lost a", "found a"])
    world.network.send(link, Ping(NodeId("a")))
    _wait(world, LEASE)
    assert received == [Ping(NodeId("a"))]


def test_the_connections_of_a_process_that_ends_break_and_come_back_when_it_does() -> None:
    one, other = _Node(), _Node()
    world, _ = _connected(a=one, b=other)
    other.alive = False
    world.connections.ended(NodeId("b"))
    _wait(world, LEASE)
    assert one.heard == ["lost b refused"]
    other.alive = True
    _wait(world, LEASE)
    assert one.heard == ["lost b refused", "found b"]


@pytest.mark.parametrize("subscribed", [True, False])
def test_the_bus_keeps_the_order_of_a_publisher_and_drops_what_nobody_is_subscribed_to(
    subscribed: bool,
) -> None:
    timeline, received = Timeline(), list[BusMessage]()
    network: Network[BusMessage] = Network(timeline, Random(1), Weather(1_000, in_order=True))
    bus = Bus(network)
    bus.connect("n1", received.append)
    if subscribed:
        bus.subscribe(NodeId("n1"), StreamName("s1"))
    sent = [Publish("p1", StreamName("s1"), f"p1-{number}", 1) for number in range(20)]
    for message in sent:
        bus.publish(message)
    bus.unsubscribe(NodeId("n1"), StreamName("s1"))
    bus.publish(sent[0])
    while timeline.take_next(_LONG):
        pass
    assert received == (sent if subscribed else [])


def test_a_minority_of_clusters_has_read_replicas_on_nodes_of_their_own_and_the_others_are_unchanged() -> (
    None
):
    drawn = 0
    for seed in range(300):
        before = draw(Random(seed), frugal=False)
        after = with_read_replicas(before, Random(seed))
        if not after.has_read_replicas:
            assert after == before
            continue
        drawn += 1
        assert "exchange_readers" in after.faults
        for shape in after.streams:
            assert 1 <= len(shape.read_replicas) <= 2
            assert len(set(shape.holders)) == len(shape.holders)
            assert set(shape.holders) <= set(after.nodes)
    assert 20 <= drawn <= 80
