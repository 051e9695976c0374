"""Limits of namespaces on real nodes: who may set them, what they refuse, and no race beyond one."""

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import jetstream
from envelope.errors import JetstreamError, Unauthorized
from envelope.namespace_errors import (
    CreationsTooFast,
    NamespaceLimitReached,
    RetentionBytesRequired,
    SubjectNotAllowed,
)
from jetstream.client.connection import JetstreamClient
from jetstream.node.node import Node
from metadata.api.responses import StreamInfo
from tests.conftest import StartNatsServer
from tests.support.cluster_scene import three_nodes
from tests.support.nats_site import INBOX, NODE, PASSWORD, site
from tests.support.node_cluster import asked
from tests.support.nodes import WAIT_SECONDS, nats_and_node, node_config, run
from tests.support.scraping import metrics

MIB = 1 << 20
TEAM_RIGHTS = [
    "jetstream.api.cluster.info",
    "jetstream.api.stream.*.shop.>",
    "jetstream.api.namespace.info.shop",
]
LEAD_RIGHTS = [*TEAM_RIGHTS, "jetstream.api.namespace.limit.shop.>"]


def user(name: str, may_publish: list[str]) -> str:
    rights = f'publish: {json.dumps(may_publish)}, subscribe: "{INBOX}"'
    return f"{{ user: {name}, password: {PASSWORD}, permissions: {{ {rights} }} }}"


SERVER = f"""authorization {{ users: [
    {{ user: {NODE}, password: {PASSWORD}, permissions: {{ publish: ">", subscribe: ">" }} }}
    {user("team", TEAM_RIGHTS)}
    {user("lead", LEAD_RIGHTS)}
] }}"""


def test_nats_decides_who_limits_a_namespace_and_the_limits_who_creates_what_in_it(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    server = start_nats_server(SERVER)

    async def scenario() -> None:
        async with (
            site(tmp_path / "data", server, names_in_subjects="required") as there,
            there.party(NODE) as operator,
            there.party("team") as team,
            there.party("lead") as lead,
        ):
            for party in (team, lead):
                with pytest.raises(Unauthorized, match=r"namespace\.limit\.shop"):
                    await party.namespaces.limit("shop", streams=100)
                with pytest.raises(Unauthorized, match=r"namespace\.limit'"):
                    await party.namespaces.limit(None, streams=100)
            limited = await operator.namespaces.limit("shop", streams=2, subjects=["shop.>"])
            assert (await team.namespaces.info("shop")) == limited
            with pytest.raises(SubjectNotAllowed):
                await team.streams.create("shop/spy", "hr.>")
            await team.streams.create("shop/orders", "shop.orders")
            with pytest.raises(SubjectNotAllowed):
                await team.streams.update("shop/orders", subject=">", ack="none")
            await lead.namespaces.limit("shop/eu", streams=0)
            with pytest.raises(NamespaceLimitReached, match="'shop/eu'"):
                await team.streams.create("shop/eu/orders", "shop.eu")
            await team.streams.create("shop/bills", "shop.bills")
            with pytest.raises(NamespaceLimitReached, match="the limit is 2"):
                await team.streams.create("shop/more", "shop.more")
            assert [each.name for each in await operator.namespaces.list()] == [None, "shop", "shop/eu"]
            assert [each.name for each in await operator.namespaces.list("shop/")] == ["shop/eu"]
            assert (await operator.namespaces.info()).streams == 2

    run(scenario())


def test_no_partition_is_made_of_a_stream_whose_partitions_are_too_many(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _), jetstream.connect(url) as js:
            await js.namespaces.limit("shop", streams=5)
            options = {"partition_by": "key", "retention": {"bytes": MIB}, "segment_bytes": MIB}
            with pytest.raises(NamespaceLimitReached, match="6 more are wanted, 0 are taken"):
                await js.streams.create("shop/a", "a", partitions=6, **options)
            assert await js.streams.list() == []
            await js.namespaces.limit("shop", bytes=9 * MIB)
            await js.streams.create("shop/a", "a", partitions=4, **options)
            assert (await js.namespaces.info("shop")).bytes == 8 * MIB
            with pytest.raises(NamespaceLimitReached, match="bytes: 2097152 more"):
                await js.streams.update("shop/a", partitions=5)
            with pytest.raises(NamespaceLimitReached, match="bytes: 4194304 more"):
                await js.streams.update("shop/a", retention={"bytes": 2 * MIB})
            assert (await js.namespaces.info("shop")).bytes == 8 * MIB
            await js.namespaces.limit("shop", bytes=10 * MIB)
            await js.streams.update("shop/a", partitions=5)
            assert (await js.namespaces.info("shop")).streams == 5

    run(scenario())


def test_limits_and_what_was_counted_are_there_after_a_restart(
    tmp_path: Path, start_nats_server: StartNatsServer
) -> None:
    kept = {"retention": {"bytes": MIB}, "segment_bytes": MIB}

    async def limit_and_use(js: JetstreamClient) -> None:
        await js.streams.create("pay/old", "pay.old")
        with pytest.raises(RetentionBytesRequired, match="'pay/old'"):
            await js.namespaces.limit("pay", bytes=MIB)
        await js.namespaces.limit("shop", bytes=8 * MIB, creations_per_minute=2)
        with pytest.raises(RetentionBytesRequired):
            await js.streams.create("shop/a", "a")
        for name in ("shop/a", "shop/b"):
            await js.streams.create(name, name[-1], **kept)

    async def use_again(js: JetstreamClient) -> None:
        info = await js.namespaces.info("shop")
        assert (info.streams, info.bytes) == (2, 4 * MIB)
        assert (info.limits.bytes, info.limits.creations_per_minute) == (8 * MIB, 2)
        with pytest.raises(CreationsTooFast) as refused:
            await js.streams.create("shop/c", "c", **kept)
        assert refused.value.retriable
        wait_ms = refused.value.detail["retry_after_ms"]
        assert isinstance(wait_ms, int)
        assert 0 < wait_ms <= 30_000
        await js.publish("a", b"taken as ever")
        freed = await js.namespaces.limit("shop", bytes=None, creations_per_minute=None)
        assert freed.limits.is_empty
        await js.streams.create("shop/c", "c")

    async def scenario(url: str) -> None:
        for use in (limit_and_use, use_again):
            async with Node(node_config(tmp_path / "data", url)), jetstream.connect(url) as js:
                await use(js)

    run(scenario(start_nats_server().url))


def test_metrics_show_limits_and_use_of_the_namespaces_that_have_limits(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with nats_and_node(tmp_path, http={"port": 0}) as (url, node), jetstream.connect(url) as js:
            await js.streams.create("shop/a", "a", retention={"bytes": MIB}, segment_bytes=MIB)
            await js.streams.create("pay/b", "b")
            await js.namespaces.limit("shop", streams=3, bytes=9 * MIB, creations_per_minute=7)
            await js.namespaces.limit(None, streams=50)
            found = {key: value for key, value in (await metrics(node)).items() if "_namespace_" in key[0]}
            assert found == {
                ("jetstream_namespace_streams", ("",)): 2,
                ("jetstream_namespace_streams", ("shop",)): 1,
                ("jetstream_namespace_streams_limit", ("",)): 50,
                ("jetstream_namespace_streams_limit", ("shop",)): 3,
                ("jetstream_namespace_reserved_bytes", ("",)): 2 * MIB,
                ("jetstream_namespace_reserved_bytes", ("shop",)): 2 * MIB,
                ("jetstream_namespace_bytes_limit", ("shop",)): 9 * MIB,
                ("jetstream_namespace_creations_per_minute_limit", ("shop",)): 7,
            }

    run(scenario())


def test_the_blocking_client_has_the_same_methods(tmp_path: Path) -> None:
    def use(url: str) -> None:
        with jetstream.connect_blocking(url) as js:
            js.namespaces.limit("shop", streams=1)
            assert js.namespaces.info("shop").limits.streams == 1
            assert [each.name for each in js.namespaces.list(limited=True)] == ["shop"]

    async def scenario() -> None:
        async with nats_and_node(tmp_path) as (url, _):
            await asyncio.to_thread(use, url)

    run(scenario())


@pytest.mark.slow("tests/property/test_namespaces.py", "tests/unit/metadata/test_catalog_namespaces.py")
def test_creations_at_three_nodes_at_once_never_go_beyond_a_limit(tmp_path: Path) -> None:
    """Also while the leader of the metadata log dies and another decides."""

    async def race(clients: list[JetstreamClient], numbers: range) -> None:
        """Create these streams at once; the answer of some may be lost with a node."""
        made = await asyncio.gather(
            *(
                clients[number % 3].streams.create(f"shop/{number}", f"shop.{number}", replicas=2)
                for number in numbers
            ),
            return_exceptions=True,
        )
        assert all(isinstance(each, StreamInfo | JetstreamError) for each in made), made

    async def test() -> None:
        async with AsyncExitStack() as stack:
            scene = stack.enter_context(three_nodes(tmp_path))
            clients = [await stack.enter_async_context(scene.client()) for _ in range(3)]
            js = clients[0]
            await scene.until_alive(js.nats, "abc")
            await js.namespaces.limit("shop", streams=5)
            await race(clients, range(18))
            assert len(await js.streams.list("shop/")) == 5
            await js.namespaces.limit("shop", streams=9)
            leader = (await js.requests.cluster_info()).metadata_leader
            assert leader is not None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(race(clients, range(100, 118)))
                scene.cluster[leader].kill()
            async with asyncio.timeout(WAIT_SECONDS):
                while (await asked(js.nats, "namespace.info", name="shop")).get("streams") != 9:
                    await race(clients, range(200, 206))
            with pytest.raises(NamespaceLimitReached):
                await js.streams.create("shop/more", "shop.more", replicas=2)
            scene.cluster[leader].start()
            async with asyncio.timeout(WAIT_SECONDS):
                for name in scene.cluster.nodes:  # each by its own catalogue
                    while (await asked(js.nats, f"node.{name}.namespace.info.shop")).get("streams") != 9:
                        pass

    run(test())
