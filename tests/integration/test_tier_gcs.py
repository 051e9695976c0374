"""A stream in a store that speaks Google Cloud Storage's API: an emulator stands in for a real one."""

import shutil
from pathlib import Path

from jetstream.tier.object_store import ObjectStore
from jetstream.tier.restore import all_remains
from tests.integration.test_tiers import RECORDS, read, tiered, tiered_node
from tests.support.gcs_server import gcs_server
from tests.support.nodes import run


def test_a_stream_lives_in_gcs_and_comes_back_from_there(tmp_path: Path) -> None:
    async def scenario(uri: str) -> None:
        async with tiered_node(tmp_path, tier=uri) as (js, node):
            await tiered(js, node)
            assert await read(js, "orders") == list(range(RECORDS))
        [remains] = all_remains(ObjectStore.at(uri))
        end = remains.manifest.end
        assert end > RECORDS // 2
        assert remains.missing == ()
        shutil.rmtree(tmp_path / "data")
        async with tiered_node(tmp_path, tier=uri) as (js, _):
            restored = await js.streams.restore("orders")
            assert restored.log_end_offset == end
            assert await read(js, "orders") == list(range(end))

    with gcs_server() as uri:
        run(scenario(uri))
