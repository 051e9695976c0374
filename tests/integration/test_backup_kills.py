"""``jetstream backup`` and ``restore`` as processes that are killed, and a leader that is meanwhile."""

import asyncio
import json
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import jetstream
from envelope.errors import StorageError
from jetstream.client.connection import JetstreamClient
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from tests.support.backups import backed_up, node_of_backup, restored, store_at, stored
from tests.support.cluster_scene import ClusterScene, three_nodes
from tests.support.commands import CommandProcess, json_lines, succeeded
from tests.support.commands import jetstream as command
from tests.support.growing_cluster import GrowingCluster, are_alive, are_voters, client_of, until_info
from tests.support.nats_server import NatsServer
from tests.support.nodes import NodeProcess, nats_and_node, node_config, run
from tests.support.pauses import pause_thread

RECORDS = 40_000
SMALL = {"segment_bytes": 64 * 1024}


async def fill(client: JetstreamClient, numbers: range) -> None:
    for first in range(numbers.start, numbers.stop, 200):
        await client.publish_all((f"orders.{n % 3}", b"%d " % n * 40) for n in range(first, first + 200))


def ended_once(is_reached: Callable[[], bool], turn: int, *arguments: str, nats: str = "") -> None:
    """Start a command, and end it as soon as it has come so far; it must not have ended by then.

    In the first turn it is interrupted, in others killed.
    """
    number, expected = (signal.SIGINT, 130) if turn == 1 else (signal.SIGKILL, -signal.SIGKILL)
    with CommandProcess(*arguments, nats=nats) as process:
        while not is_reached():
            pause_thread()
        code, _, error = process.signalled(number)
        assert code == expected, error


def has_files(directory: Path, count: int) -> bool:
    return sum(path.is_file() for path in directory.rglob("*")) >= count


def test_a_backup_that_is_killed_is_none_and_the_next_one_goes_on(tmp_path: Path) -> None:
    place, data = tmp_path / "backups", tmp_path / "restored"

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            source = NodeProcess(tmp_path / "source", server.url)
            source.start()
            async with jetstream.connect(server.url) as client:
                await client.streams.create("orders", "orders.>", **SMALL)
                await fill(client, range(RECORDS))
                before = await stored(client, "orders")
            for turn in range(1, 4):
                ended_once(partial(has_files, place, 6 * turn), turn, "backup", str(place), nats=server.url)
                assert store_at(place).names() == []
            [made] = json_lines(
                await asyncio.to_thread(succeeded, "backup", str(place), "--json", nats=server.url)
            )
            assert made["written_bytes"] < made["bytes"], "some of it was there"
            source.stop()
            for turn in range(1, 4):
                has_some = partial(has_files, data / "streams", 6)
                ended_once(has_some, turn, "restore", str(place), "--data", str(data))
                with pytest.raises(StorageError):
                    await Node(node_config(data, server.url)).__aenter__()
            [told] = json_lines(succeeded("restore", str(place), "--data", str(data), "--json"))
            assert told["streams"] == made["streams"]
            target = NodeProcess(data, server.url)
            target.start()
            async with jetstream.connect(server.url) as client:
                assert (await client.streams.info("orders")).leader == told["node_id"]
                assert await stored(client, "orders") == before
            target.kill()
            target.start()
            async with jetstream.connect(server.url) as client:
                assert await stored(client, "orders") == before
            assert target.stop() == 0

    run(scenario())


def test_the_commands_say_what_there_is_and_what_is_wrong(tmp_path: Path) -> None:
    place = tmp_path / "backups"

    async def scenario() -> None:
        async with EmbeddedNatsServer(tmp_path / "nats") as server:
            source = NodeProcess(tmp_path / "source", server.url)
            source.start()
            async with jetstream.connect(server.url) as client:
                await client.streams.create("orders", "orders.>", **SMALL)
                await fill(client, range(1000))
            refused = command("restore", str(place), "--data", str(tmp_path / "target"), "--json")
            assert (refused.exit_code, error_of(refused.stderr)) == (3, "unknown_backup")
            first, second = [
                json_lines(
                    await asyncio.to_thread(succeeded, "backup", str(place), "--json", nats=server.url)
                )[0]
                for _ in range(2)
            ]
            assert second["written_bytes"] == 0
            source.stop()
        (place / second["backup"]).write_bytes(b"{")
        listed = json_lines(succeeded("restore", str(place), "--list", "--json"))
        assert [each["backup"] for each in listed] == [first["backup"], second["backup"]]
        assert [each["streams"] for each in listed] == [first["streams"], None]
        refused = command("restore", str(place), "--data", str(tmp_path / "target"), "--json")
        assert (refused.exit_code, error_of(refused.stderr)) == (6, "damaged_backup")
        named = ("--backup", first["backup"], "--node-id", "n1", "--json")
        refused = command("restore", str(place), "--data", str(tmp_path), *named)
        assert (refused.exit_code, error_of(refused.stderr)) == (4, "directory_in_use")
        assert command("restore", str(place)).exit_code == 2
        [told] = json_lines(succeeded("restore", str(place), "--data", str(tmp_path / "target"), *named))
        assert (told["node_id"], told["replicas"]["orders"]) == ("n1", 1)

    run(scenario())


def error_of(text: str) -> str:
    return str(json.loads(text.splitlines()[-1])["error"]["err_code"])


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterScene]:
    with three_nodes(tmp_path_factory.mktemp("cluster")) as scene:
        yield scene


def test_a_backup_outlives_the_leader_that_it_reads_from(scene: ClusterScene, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene.client() as client:
            await scene.created(client.nats, "orders", ["a", "b", "c"], **SMALL)
            await fill(client, range(RECORDS))
            before = await stored(client, "orders")
            place = tmp_path / "backups"
            with CommandProcess("backup", str(place), "--json", nats=scene.url) as process:
                while not has_files(place, 5):
                    pause_thread()
                scene.cluster["a"].kill()
                code, output, error = process.finished()
            assert code == 0, error
            assert json.loads(output)["left_out"] == []
            scene.cluster["a"].start()
            await scene.until_alive(client.nats, "abc")
            # Another replica has the same records, and the same bytes where nothing was rewritten.
            again = await backed_up(client, place)
            assert again.progress.written == 0
        async with node_of_backup(place, tmp_path / "target") as (target, _):
            assert await stored(target, "orders") == before
            info = await target.streams.info("orders")
            assert (info.replicas, info.config.replicas) == ([info.leader], 1)

    run(scenario())


def test_a_restored_node_grows_into_a_cluster(tmp_path: Path) -> None:
    place = tmp_path / "backups"

    async def scenario() -> None:
        async with nats_and_node(tmp_path / "source") as (url, _), jetstream.connect(url) as client:
            await client.streams.create("orders", "orders.>", **SMALL)
            await fill(client, range(1000))
            await client.streams.truncate("orders", 77)
            await client.cursors.commit("me", "orders", 500)
            before = await stored(client, "orders")
            await backed_up(client, place)
        with NatsServer(tmp_path / "nats") as server:
            cluster = GrowingCluster(tmp_path / "cluster", server.url)
            try:
                await restored(place, cluster.add("a").data, node_id="a")
                for name in "bc":
                    cluster.add(name)
                cluster.start()
                async with client_of(server.url) as nats, jetstream.connect(server.url) as client:
                    await until_info(nats, are_alive("abc"), are_voters("abc"))
                    await client.streams.update("orders", replicas=3)
                    await cluster.until_whole(nats, "orders", 3)
                    assert await stored(client, "orders") == before
                    assert (await client.cursors.get("me", "orders")).offset == 500
                    info = await client.streams.info("orders")
                    ends = {(state.node, state.synced_end) for state in info.replica_states}
                    assert ends == {("a", 1000), ("b", 1000), ("c", 1000)}
            finally:
                cluster.close()

    run(scenario())
