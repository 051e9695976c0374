"""An object store that is away for a while: nothing is dropped meanwhile, and uploads go on by themselves."""

from pathlib import Path

import pytest

from tests.support.nodes import run
from tests.support.s3_server import s3_server
from tests.support.scene import a_scene
from tests.support.tcp_proxy import proxied
from tests.support.tier_outages import check_outage


def test_a_folder_that_is_away_for_a_while(tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"

    def begin() -> None:
        store.rename(away)
        store.write_text("a file where the folder was")

    def end() -> None:
        store.unlink()
        away.rename(store)

    async def scenario() -> None:
        async with a_scene(tmp_path, maintenance_interval=0.05, tier=str(store)) as scene:
            await check_outage(scene, begin, end, failures=2)

    run(scenario())


@pytest.mark.deep
def test_an_s3_server_that_cannot_be_reached_for_a_while(tmp_path: Path) -> None:
    """Deep, because Arrow itself tries to connect for six seconds before it says that it cannot."""

    async def scenario() -> None:
        with s3_server() as server:
            async with (
                proxied(server.port) as proxy,
                a_scene(tmp_path, maintenance_interval=0.05, tier=server.uri("away", proxy.port)) as scene,
            ):

                def begin() -> None:
                    proxy.target = 1  # where nobody listens
                    for connection in proxy.connections:
                        connection.abort()

                def end() -> None:
                    proxy.target = server.port

                await check_outage(scene, begin, end, failures=1)

    run(scenario())
