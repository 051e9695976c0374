"""The roles of docs/permissions.md on several nodes, and on several nats-servers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from envelope.errors import NoResponders
from tests.conftest import StartNatsServer
from tests.support.node_cluster import NodeCluster, free_ports
from tests.support.nodes import run
from tests.support.pauses import pause
from tests.support.role_matrix import check_matrix
from tests.support.role_sites import SITES, configuration, configured_site, socket_settings
from tests.support.socket_operations import ticket


def socket_lines() -> str:
    """Return the page's settings of the socket as lines of TOML."""
    return "\n".join(f"{key} = {json.dumps(value)}" for key, value in socket_settings().items())


@pytest.mark.parametrize("way", ["configuration", "operator mode"])
def test_nodes_of_a_cluster_pass_requests_on_as_the_page_lets_them(
    tmp_path: Path, start_nats_server: StartNatsServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    there = SITES[way](tmp_path, start_nats_server)
    for name, value in there.node_identity.items():
        monkeypatch.setenv(f"JETSTREAM_NODE_NATS__{name.upper()}", str(value))

    @asynccontextmanager
    async def three_nodes() -> AsyncIterator[None]:
        cluster = NodeCluster(tmp_path, there.server.url, socket=socket_lines())
        try:
            cluster.start()
            async with there.connect("operator") as operator:
                await cluster.until_ready(operator.nats)
                replicas = {"replicas": 3, "min_insync_replicas": 2}
                await operator.streams.create("all", "shop.orders.all", **replicas)
                await cluster.until_whole(operator.nats, "all")
                async with there.connect("publisher") as publisher:
                    assert (await publisher.publish("shop.orders.all", b"x")).offset == 0
            yield
        finally:
            cluster.close()

    run(check_matrix(there, three_nodes()))
    assert not [line for line in there.server.log_lines if "LOG/user:node" in line]


def test_users_of_one_nats_server_have_their_rights_with_nodes_at_another(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    ports = free_ports(2)
    nodes_there, users_there = (
        configured_site(
            tmp_path,
            start_nats_server,
            f"cluster {{ name: N, listen: 127.0.0.1:{own}, routes: [ nats://127.0.0.1:{other} ] }}\n"
            + configuration(),
        )
        for own, other in (ports, ports[::-1])
    )

    async def until_known() -> None:
        """Wait until one server knows what is subscribed to at the other."""
        async with users_there.connect("operator") as js:
            while True:
                try:
                    await ticket(js, "read", stream="absent")
                except NoResponders:
                    await pause()
                else:
                    return

    async def scenario() -> None:
        async with nodes_there.node(tmp_path / "data"):
            await until_known()
            await check_matrix(users_there, nullcontext())

    run(scenario())
