"""What the driver knows of a cluster that changes, or goes away, while it plans; without Spark."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

import jetstream
from envelope.errors import UnavailableError
from jetstream.client.blocking.client import BlockingClient
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from jetstream.spark.options.access import ClusterAccess
from jetstream.spark.options.source_options import SourceOptions, parse_source_options
from jetstream.spark.reading import cluster as clusters
from jetstream.spark.reading.batch_reader import input_partitions
from jetstream.spark.reading.cluster import Cluster
from jetstream.spark.reading.columns import output_schema
from jetstream.spark.reading.planning import IncarnationRange
from jetstream.spark.reading.range_reader import read_range
from tests.conftest import StartNatsServer
from tests.support.nats_server import NatsServer
from tests.support.nodes import node_config, run
from tests.support.spark_reads import numbers

Scenario = Callable[[BlockingClient, SourceOptions, NatsServer], None]


@pytest.fixture
def against_a_cluster(
    tmp_path: Path, start_nats_server: StartNatsServer, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Scenario], None]:
    """Runs a scenario with a client that has little patience; the streams are listed each time."""
    monkeypatch.setattr(clusters, "LOOK_S", 0.0)

    def against(scenario: Scenario) -> None:
        server = start_nats_server()
        options = parse_source_options({"servers": server.url, "stream": "orders"}, streaming=True)

        def connected() -> None:
            with jetstream.connect_blocking(server.url, request_timeout=1.0) as js:
                scenario(js, options, server)

        async def test() -> None:
            async with Node(node_config(tmp_path / "data", server.url)):
                await asyncio.to_thread(connected)

        run(test())

    return against


def test_without_nats_the_streams_that_are_known_are_planned(
    against_a_cluster: Callable[[Scenario], None],
) -> None:
    def scenario(js: BlockingClient, options: SourceOptions, server: NatsServer) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(10))
        cluster = Cluster(js, options)
        bounds = cluster.bounds()
        server.stop()
        assert cluster.bounds() == bounds
        assert cluster.missing() == []
        with pytest.raises(UnavailableError):
            Cluster(js, options).bounds()
        server.start()

    against_a_cluster(scenario)


def test_what_is_gone_has_no_boundary_but_its_end(against_a_cluster: Callable[[Scenario], None]) -> None:
    def scenario(js: BlockingClient, options: SourceOptions, _: NatsServer) -> None:
        js.streams.create("orders", "orders.>")
        for start in range(0, 30, 10):
            numbers(js, range(start, start + 10))
        cluster = Cluster(js, options)
        wanted = IncarnationRange("orders", cluster.bounds()["orders"].incarnation, 0, 25)
        assert 0 < cluster.boundary(wanted, 1) < 25
        js.streams.truncate("orders", before=20)
        assert cluster.boundary(wanted, 1) == 25
        assert cluster.boundary(wanted._replace(incarnation="another", start=20), 1) == 25
        js.streams.delete("orders")
        assert cluster.boundary(wanted, 1) == 25

    against_a_cluster(scenario)


def test_a_stream_that_goes_while_it_is_planned_is_left_to_who_reads_it(
    against_a_cluster: Callable[[Scenario], None],
) -> None:
    def scenario(js: BlockingClient, options: SourceOptions, _: NatsServer) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(10))
        cluster = Cluster(js, options)
        now = cluster.bounds()["orders"]
        js.streams.delete("orders")
        wanted = IncarnationRange("orders", now.incarnation, now.start, now.end)
        [partition] = input_partitions(options, cluster, [wanted])
        assert partition.value.piece.range == wanted
        assert cluster.missing() == ["orders"]

    against_a_cluster(scenario)


class AwayAtFirst:
    """The way to a cluster whose NATS server comes back when it is taken for the second time."""

    def __init__(self, access: ClusterAccess, server: NatsServer) -> None:
        self.access = access
        self.server = server
        self.is_away = True

    def connect(self) -> AbstractAsyncContextManager[JetstreamClient]:
        if self.is_away:
            self.is_away = False
            return jetstream.connect(*self.access.servers, request_timeout=0.1)
        self.server.start()
        return self.access.connect()


def test_a_task_waits_for_nats_to_come_back(against_a_cluster: Callable[[Scenario], None]) -> None:
    def scenario(js: BlockingClient, options: SourceOptions, server: NatsServer) -> None:
        js.streams.create("orders", "orders.>")
        numbers(js, range(10))
        cluster = Cluster(js, options)
        now = cluster.bounds()["orders"]
        wanted = IncarnationRange("orders", now.incarnation, now.start, now.end)
        [partition] = input_partitions(options, cluster, [wanted])
        server.stop()
        there = replace(options, access=cast("ClusterAccess", AwayAtFirst(options.access, server)))
        found = read_range(partition.value, there, output_schema(["offset"]))
        assert [row["offset"] for batch in found for row in batch.to_pylist()] == list(range(10))

    against_a_cluster(scenario)
