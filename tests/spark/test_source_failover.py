"""The readers of the Spark source on a cluster whose leaders are killed, without Spark."""

import asyncio
from collections.abc import Iterator

import pytest

from envelope.limits import MIB
from jetstream.spark.reading.readers import batch_reader, read_schema
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.nodes import WAIT_SECONDS, run
from tests.support.spark_reads import Query, rows_of

RECORDS = 48
"""Of a mebibyte each: more than a reader has ahead."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("failover")) as scene:
        yield scene


@pytest.mark.slow("tests/spark/test_source_cluster.py", "tests/integration/test_cluster_reads.py")
def test_a_leader_that_is_killed_in_the_middle_of_a_task_is_replaced_without_a_gap(
    scene: ClusterScene,
) -> None:
    async def test() -> None:
        async with scene.client() as js:
            await js.streams.create("orders", "orders.>", replicas=3)
            leader = str((await scene.cluster.until_whole(js.nats, "orders"))["leader"])
            await js.publish_all(
                ("orders.x", bytes([n]) * MIB, {"timeout": WAIT_SECONDS}) for n in range(RECORDS)
            )
            await asyncio.to_thread(read_over_the_kill_of, leader)
            await scene.cluster.until_taken_over(js.nats, "orders", leader)
            scene.cluster[leader].start()
            await scene.cluster.until_whole(js.nats, "orders")

    def read_over_the_kill_of(leader: str) -> None:
        options = {"servers": scene.url, "stream": "orders", "readPreference": "leader"}
        reader = batch_reader(options, read_schema(options))
        [partition] = reader.partitions()
        reading = reader.read(partition)
        rows = next(reading).to_pylist()
        scene.cluster[leader].kill()
        rows += [row for batch in reading for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == list(range(RECORDS))
        assert [row["value"][:1] for row in rows] == [bytes([n]) for n in range(RECORDS)]
        query = Query({**options, "startingOffsets": "earliest", "columns": "offset"})
        assert [row["offset"] for row in query.batch() or []] == list(range(RECORDS))
        assert rows_of(reader, [partition]) == rows
        query.close()

    run(test())
