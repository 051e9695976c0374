"""``jetstream up --nodes 3`` and what the other commands show of a cluster."""

import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from envelope.types import NodeId
from jetstream.cli.serve.cluster_directory import cluster_directory
from metadata.features import LATEST_LEVEL
from tests.support.commands import WAIT_SECONDS, CommandProcess, jetstream, json_lines, succeeded, up
from tests.support.local_clusters import Cluster, next_event, start
from tests.support.pauses import pause_thread


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(data: Path) -> Iterator[Cluster]:
    cluster = start(data, "--http-port", "0")
    with cluster.process:
        succeeded("stream", "create", "orders", "--subject", "orders.>", "--replicas", "3", nats=cluster.nats)
        yield cluster


def until_in_sync(nats: str) -> dict[str, Any]:
    """Return the cluster as it is once all three replicas are in sync again."""
    info: dict[str, Any] = {}
    gives_up_at = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < gives_up_at:
        info = json.loads(succeeded("cluster", "info", "--json", nats=nats))
        alive = all(node["alive"] for node in info["cluster"]["nodes"])
        [stream] = info["streams"]
        if alive and stream["state"] == "online" and stream["isr"] == ["a", "b", "c"] and stream["lag"] == 0:
            return info
        pause_thread()
    raise AssertionError(f"not in sync: {info}")


def children(parent: int) -> list[int]:
    """Return the processes that a process has started."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if int(status.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(status.parent.name))
    return found


def wait_for_end(process: int) -> None:
    """Wait until the process behind a descriptor of `os.pidfd_open` has ended."""
    ended, _, _ = select.select([process], [], [], WAIT_SECONDS)
    assert ended
    os.close(process)


@pytest.mark.slow("tests/integration/test_cli_cluster.py::test_a_node_that_dies_is_said_and_started_again")
def test_the_nodes_say_where_they_listen(cluster: Cluster) -> None:
    assert list(cluster.nodes) == ["a", "b", "c"]
    addresses = [address for node in cluster.nodes.values() for address in node["endpoints"].values()]
    assert len(set(addresses)) == 6


def test_cluster_info_shows_nodes_and_replication(cluster: Cluster) -> None:
    info = until_in_sync(cluster.nats)
    assert [node["id"] for node in info["cluster"]["nodes"]] == ["a", "b", "c"]
    assert info["cluster"]["metadata_leader"] in cluster.nodes
    [stream] = info["streams"]
    assert (stream["name"], stream["state"]) == ("orders", "online")
    text = succeeded("cluster", "info", nats=cluster.nats)
    assert "a new stream has 1 replica by default" in text
    assert f"the metadata log is led by {info['cluster']['metadata_leader']}" in text
    assert cluster.nodes["b"]["endpoints"]["socket"] in text
    assert "a, b, c" in text


def test_a_stream_shows_its_replicas(cluster: Cluster) -> None:
    leader = until_in_sync(cluster.nats)["streams"][0]["leader"]
    rows = [line.split() for line in succeeded("stream", "info", "orders", nats=cluster.nats).splitlines()]
    assert {(row[0], row[2]) for row in rows if len(row) > 2 and row[0] in cluster.nodes} == {
        (name, "leader" if name == leader else "follower") for name in cluster.nodes
    }
    assert f"│ {leader}      │ 3 of 3" in succeeded("stream", "ls", nats=cluster.nats)


def test_replicas_are_added_and_a_default_is_set(cluster: Cluster) -> None:
    default = ("cluster", "update", "--default-replicas")
    said = succeeded(*default, "2", nats=cluster.nats)
    assert said == "a new stream has 2 replicas by default\n"
    succeeded("stream", "create", "copies", "--subject", "copies.>", nats=cluster.nats)
    made = json.loads(succeeded("stream", "info", "copies", "--json", nats=cluster.nats))
    assert made["config"]["replicas"] == len(made["replicas"]) == 2
    changed = json.loads(
        succeeded("stream", "update", "copies", "--replicas", "3", "--json", nats=cluster.nats)
    )
    assert changed["target"] or changed["config"]["replicas"] == 3, "it has begun, or is over"
    gives_up_at = time.monotonic() + WAIT_SECONDS
    while json.loads(succeeded("stream", "info", "copies", "--json", nats=cluster.nats))["target"]:
        assert time.monotonic() < gives_up_at
        pause_thread()
    assert "3 of 3" in succeeded("stream", "ls", "copies", nats=cluster.nats)
    refused = jetstream("stream", "update", "copies", "--replicas", "4", nats=cluster.nats)
    assert (refused.exit_code, "replicas: 4 wanted, 3 nodes to hold them" in refused.stderr) == (4, True)
    assert json.loads(succeeded(*default, "1", "--json", nats=cluster.nats))["default_replicas"] == 1
    succeeded("stream", "delete", "copies", "--yes", nats=cluster.nats)


def test_the_feature_level_is_shown_and_raised_as_far_as_all_nodes_can(cluster: Cluster) -> None:
    update = ("cluster", "update", "--feature-level")
    assert (
        succeeded(*update, "latest", nats=cluster.nats) == f"the cluster is at feature level {LATEST_LEVEL}\n"
    )
    shown = json.loads(succeeded("cluster", "info", "--json", nats=cluster.nats))["cluster"]
    assert shown["feature_level"] == LATEST_LEVEL
    assert {node["id"]: node["feature_level"] for node in shown["nodes"]} == dict.fromkeys(
        "abc", LATEST_LEVEL
    )
    assert f"the cluster is at feature level {LATEST_LEVEL}" in succeeded(
        "cluster", "info", nats=cluster.nats
    )
    refused = jetstream(*update, f"{LATEST_LEVEL + 1}", nats=cluster.nats)
    assert (refused.exit_code, f"node a can {LATEST_LEVEL}" in refused.stderr) == (4, True)
    for wrong in ("0", "newest"):
        assert jetstream(*update, wrong, nats=cluster.nats).exit_code == 4
    assert jetstream("cluster", "update", nats=cluster.nats).exit_code == 2


def test_a_node_that_dies_is_said_and_started_again(cluster: Cluster) -> None:
    leader = until_in_sync(cluster.nats)["streams"][0]["leader"]
    os.kill(cluster.nodes[leader]["pid"], signal.SIGKILL)
    assert next_event(cluster.process) == {"event": "died", "node": leader, "exit_code": -9, "reason": None}
    assert next_event(cluster.process) == {"event": "restarted", "node": leader}
    info = until_in_sync(cluster.nats)
    assert info["streams"][0]["leader"] != leader
    assert {node["id"]: node["node_epoch"] for node in info["cluster"]["nodes"]}[leader] == 2


@pytest.mark.slow("tests/integration/test_cli_cluster.py::test_a_node_that_dies_is_said_and_started_again")
def test_the_end_takes_all_nodes_along_and_a_restart_finds_everything(cluster: Cluster, data: Path) -> None:
    """Runs last: it kills the module's command, and stops the one that it starts in its place."""
    succeeded("pub", "orders.eu", "kept", "--timeout", "30", nats=cluster.nats)
    ends = [os.pidfd_open(process) for process in children(cluster.process.pid)]
    assert len(ends) == 4
    os.kill(cluster.process.pid, signal.SIGKILL)
    for end in ends:
        wait_for_end(end)
    again = start(data, "--log-format", "json", "--log-level", "info")
    with again.process:
        until_in_sync(again.nats)
        [record] = json_lines(succeeded("read", "orders", nats=again.nats))
        assert record["value"] == "kept"
        code, output, log = again.process.signalled(signal.SIGTERM)
    assert code == 0
    assert {event.get("node_id") for event in json_lines(log)} == set(again.nodes), (
        "each says whose line it is"
    )
    stopped = [{"event": "stopped", "node": name} for name in again.nodes]
    assert json_lines(output) == [{"event": "stopping"}, *stopped, {"event": "stopped"}]
    refused = jetstream("up", "--nodes", "5", "--data", str(data))
    assert refused.exit_code == 4
    assert "has the data of 3 nodes, and their number stays" in refused.stderr
    refused = jetstream("up", "--data", str(data))
    assert refused.exit_code == 4
    assert "has the data of several nodes" in refused.stderr


def test_a_directory_of_one_node_and_one_of_somebody_else_are_refused(tmp_path: Path) -> None:
    process, _ = up(tmp_path / "one")
    with process:
        assert process.signalled(signal.SIGTERM)[0] == 0
    refused = jetstream("up", "--nodes", "3", "--data", str(tmp_path / "one"))
    assert (refused.exit_code, "has the data of a single node" in refused.stderr) == (4, True)
    (tmp_path / "thesis.txt").write_text("not a log")
    refused = jetstream("up", "--nodes", "3", "--data", str(tmp_path))
    assert refused.exit_code == 1
    assert "nothing that says it is ours" in refused.stderr


@pytest.mark.parametrize("nodes", ["0", "2", "4", "7"])
def test_a_number_of_nodes_that_is_of_no_use_is_refused(nodes: str) -> None:
    result = jetstream("up", "--nodes", nodes)
    assert result.exit_code == 2
    assert "choose 1, 3 or 5" in result.stderr


@pytest.mark.slow("tests/integration/test_cli_cluster.py::test_a_node_that_dies_is_said_and_started_again")
def test_a_node_that_does_not_live_is_given_up_and_the_others_are_stopped(tmp_path: Path) -> None:
    with cluster_directory(tmp_path, 3) as directory:
        taken = socket.create_server(("127.0.0.1", directory.peers[NodeId("c")]))
    arguments = ("--data", str(tmp_path), "--port", "0", "--nats-port", "0", "--json")
    with taken, CommandProcess("up", "--nodes", "3", *arguments) as process:
        code, output, error = process.finished()
    assert code == 5
    # Others may find their ports taken too, for a while: nobody keeps them between two starts.
    died = [event for event in json_lines(output) if event["event"] == "died" and event["node"] == "c"]
    assert [event["exit_code"] for event in died] == [5] * 5
    assert "cannot listen for peers" in died[0]["reason"]
    assert [event["node"] for event in json_lines(output) if event["event"] == "stopped"] == ["a", "b"]
    given_up = json.loads(error.splitlines()[-1])["error"]["description"]
    assert "given up after 5 deaths within 60 s" in given_up


@pytest.mark.slow(
    "tests/integration/test_data_nodes.py::test_a_drained_data_node_is_removed_and_comes_back_as_a_new_one"
)
def test_a_data_node_is_shown_drained_and_removed(tmp_path: Path) -> None:
    cluster = start(tmp_path / "data", "--voters", "3", nodes="4")
    with cluster.process:
        info = json.loads(succeeded("cluster", "info", "--json", nats=cluster.nats))
        roles = {node["id"]: node["role"] for node in info["cluster"]["nodes"]}
        assert roles == {"a": "voter", "b": "voter", "c": "voter", "d": "data"}
        assert " data " in succeeded("cluster", "info", nats=cluster.nats)
        refused = jetstream("cluster", "remove", "a", nats=cluster.nats)
        assert refused.exit_code != 0
        assert "is a voter of the metadata log" in refused.stderr
        succeeded("cluster", "drain", "d", nats=cluster.nats)
        succeeded("cluster", "remove", "d", nats=cluster.nats)
        event = next_event(cluster.process)
        assert (event["event"], event["node"]) == ("removed", "d")
        info = json.loads(succeeded("cluster", "info", "--json", nats=cluster.nats))
        assert [node["id"] for node in info["cluster"]["nodes"]] == ["a", "b", "c"]
