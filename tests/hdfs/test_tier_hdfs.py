"""A stream in HDFS: a namenode and a datanode on this machine, and libhdfs."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envelope.errors import InvalidConfig, TierUnavailable
from jetstream.cli.output.exit_codes import ExitCode
from jetstream.tier.object_store import ObjectStore
from tests.hdfs.namenode import Namenode
from tests.support.commands import REPOSITORY, json_lines, up
from tests.support.commands import jetstream as jetstream_command
from tests.support.nodes import run
from tests.support.pauses import pause
from tests.support.scene import a_scene
from tests.support.sockets import until
from tests.support.tier_outages import check_outage, problem
from tests.support.tiered_nodes import (
    CONFIG,
    RECORDS,
    check_life,
    next_of,
    published,
    read,
    replica,
    tiered,
    tiered_node,
)


def test_a_stream_lives_in_hdfs_and_comes_back_from_there(tmp_path: Path, place: str) -> None:
    run(check_life(tmp_path, place))


def test_a_stream_that_is_deleted_leaves_no_object(tmp_path: Path, place: str) -> None:
    async def scenario() -> None:
        store = ObjectStore.at(place)
        async with tiered_node(tmp_path, tier=place) as (js, node):
            await tiered(js, node)
            [directory] = store.directories()
            await js.streams.truncate("orders", 100)
            await until(lambda: min(next_of(path) for path in store.sizes(directory)) > 100)
            await js.streams.delete("orders")
            await until(lambda: store.directories() == [])

    run(scenario())


def test_hdfs_is_a_store(place: str) -> None:
    store = ObjectStore.at(place)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        store.check_folder()
    assert store.directories() == []
    assert store.sizes("x") == {}
    store.put("x/y/one", [b"12", b"345"])
    store.put("x/y/one", [b"1234"])
    assert store.sizes("x") == {"x/y/one": 4}
    assert store.size_of("x/y/one") == 4
    assert store.size_of("x/y/two") is None
    assert b"".join(store.chunks("x/y/one")) == b"1234"
    assert store.directories() == ["x"]
    store.check_folder()
    with pytest.raises(NotADirectoryError):
        ObjectStore.at(f"{place}/x/y/one").check_folder()
    store.delete("x/y/one")
    store.delete("x/y/one")
    with pytest.raises(TierUnavailable):
        list(store.chunks("x/y/one"))
    store.delete_directory("x")
    store.delete_directory("x")
    assert store.directories() == []


@pytest.mark.usefixtures("hdfs")
def test_a_namenode_that_does_not_answer_is_not_taken_for_an_empty_store() -> None:
    store = ObjectStore.at("hdfs://127.0.0.1:1/streams")
    for asked in (
        store.directories,
        store.check_folder,
        lambda: store.sizes("x"),
        lambda: store.size_of("x"),
        lambda: store.delete("x"),
        lambda: store.delete_directory("x"),
    ):
        with pytest.raises(TierUnavailable):
            asked()
    told = jetstream_command("tier", "ls", "hdfs://127.0.0.1:1/streams")
    assert told.exit_code == ExitCode.UNREACHABLE
    with pytest.raises(InvalidConfig):
        ObjectStore.at("hdfs://nobody.invalid:1/streams")


_HALF = """
import sys
from jetstream.tier.object_store import ObjectStore

def chunks():
    yield bytes(1 << 20)
    print("half", flush=True)
    sys.stdin.read()

ObjectStore.at(sys.argv[1]).put(sys.argv[2], chunks())
"""


@pytest.mark.parametrize("is_read_first", [False, True])
def test_an_object_that_a_killed_node_left_half_stands_in_nobodys_way(
    place: str, is_read_first: bool
) -> None:
    """HDFS lends a file to who writes it, for a minute at least."""
    writer = subprocess.Popen(
        [sys.executable, "-c", _HALF, place, "x/one"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=REPOSITORY,
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    store = ObjectStore.at(place)
    if is_read_first:
        assert len(b"".join(store.chunks("x/one"))) < 1 << 20
    store.put("x/one", [b"1234"])
    assert b"".join(store.chunks("x/one")) == b"1234"
    store.delete_directory("x")
    assert store.directories() == []


def test_the_user_of_a_uri_is_who_writes(place: str) -> None:
    ObjectStore.at(place).put("x/one", [b"1"])
    for uri in (place.replace("://", "://somebody@"), f"{place}?user=somebody"):
        somebody = ObjectStore.at(uri)
        assert somebody.sizes("x") == {"x/one": 1}
        with pytest.raises(TierUnavailable, match="Permission denied"):
            somebody.put("x/two", [b"2"])


def test_a_node_with_hdfs_ends_as_others_do(tmp_path: Path, place: str) -> None:
    """The Java machine takes neither the signals from it, nor the news that its NATS server has ended."""
    node, _ = up(tmp_path / "data", JETSTREAM_NODE_TIER=place)
    with node:
        code, told, _ = node.signalled(signal.SIGTERM)
    assert (code, json_lines(told)[-1]) == (ExitCode.OK, {"event": "stopped"})


def test_a_namenode_that_is_killed_and_comes_back(tmp_path: Path, place: str, namenode: Namenode) -> None:
    async def scenario() -> None:
        async with a_scene(tmp_path, maintenance_interval=0.05, tier=place) as scene:
            await check_outage(scene, namenode.kill, namenode.start, failures=2)

    run(scenario())


def test_a_namenode_that_hangs_is_told(
    tmp_path: Path, place: str, namenode: Namenode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetstream.node.tiers.upload_round.SILENT_NS", 3 * 10**9)

    async def scenario() -> None:
        async with a_scene(tmp_path, maintenance_interval=0.05, tier=place) as scene:
            await scene.js.streams.create("orders", "orders.>", **CONFIG)
            stream = replica(scene.node, "orders")
            await until(lambda: stream.tiered.mark is not None)
            namenode.send(signal.SIGSTOP)
            try:
                await published(scene.js, "orders", range(RECORDS))
                async with asyncio.timeout(60):
                    while not (await problem(scene) or "").startswith("the object store has not answered"):
                        await pause()
                assert await read(scene.js, "orders") == list(range(RECORDS))
                assert stream.log.log_start_offset == 0
            finally:
                namenode.send(signal.SIGCONT)
            await until(lambda: stream.log.log_start_offset == RECORDS)
            assert await read(scene.js, "orders") == list(range(RECORDS))

    run(scenario())
