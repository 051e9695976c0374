"""A partitioned stream that is made again from the object store alone."""

import shutil
from pathlib import Path

import pytest

from envelope.errors import UnknownStream
from envelope.partitions import partition_of
from jetstream.node.api import operations as api_operations
from tests.support.nodes import run
from tests.support.sockets import until
from tests.support.tiered_nodes import CONFIG, RECORDS, published, read, replica, tiered_node


def test_partitions_are_restored_one_by_one_and_the_others_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_operations, "READY_SECONDS", 3600)  # nobody waits for partitions that do not come
    number = partition_of(b"orders.x", 2)
    full, empty = f"orders/{number}", f"orders/{1 - number}"

    async def scenario() -> None:
        config = {**CONFIG, "partitions": 2, "partition_by": "subject"}
        async with tiered_node(tmp_path) as (js, node):
            await js.streams.create("orders", "orders.>", **config)
            await published(js, "orders", range(RECORDS))
            stream = replica(node, full)
            await until(lambda: stream.log.log_start_offset > RECORDS // 2)
        shutil.rmtree(tmp_path / "data")
        async with tiered_node(tmp_path) as (js, _):
            restored = await js.streams.restore(full)
            end = restored.log_end_offset
            assert restored.reason_code == "partitions_missing"
            assert (restored.config.partition_of, restored.config.partition) == ("orders", number)
            with pytest.raises(UnknownStream):
                await js.streams.restore(empty)
            made = await js.streams.create("orders", "orders.>", **config)
            assert (made.created, made.effective_partitions) == (True, 2)
            await published(js, "orders", range(end, end + 20))
            assert await read(js, full) == list(range(end + 20))
            assert await read(js, empty) == []

    run(scenario())
