import tomllib
from pathlib import Path

import pytest

from envelope.errors import CorruptDataError, InvalidConfig, JetstreamError, StorageError
from envelope.types import NodeId
from jetstream.cli.serve.cluster_directory import NodePorts, cluster_directory, free_ports, ports_of
from jetstream.cli.serve.local_cluster import node_environment
from jetstream.log.disk.os_disk import OsDisk
from jetstream.log.disk.state_file import write_state
from jetstream.node.settings.node_config import LogFormat, load_config

NODES = [NodeId(name) for name in "abc"]


def test_the_nodes_and_their_peer_ports_stay(tmp_path: Path) -> None:
    with cluster_directory(tmp_path, 3) as first:
        pass
    with cluster_directory(tmp_path, 3) as again:
        assert again == first
    assert list(first.peers) == NODES
    assert len(set(first.peers.values())) == 3


def test_of_four_nodes_the_first_three_can_be_the_voters_and_stay_it(tmp_path: Path) -> None:
    with cluster_directory(tmp_path, 4, 3) as directory:
        names = list(directory.peers)
        directory.write_settings(dict.fromkeys(names, NodePorts(7000, None)), "info")
        configs = [load_config(directory.settings_file(node)) for node in names]
    assert names == list("abcd")
    for config in configs:
        assert config.peers is not None
        assert config.peers.voters is not None
        assert list(config.peers.voters) == NODES
        assert config.node_id is not None
        assert config.peers.address_of(config.node_id).port == directory.peers[config.node_id]
    for count, voters, said in ((5, 3, "4 nodes"), (4, 1, "3 voters")):
        with pytest.raises(InvalidConfig, match=said), cluster_directory(tmp_path, count, voters):
            pass


def test_a_directory_is_used_by_one_command_at_a_time(tmp_path: Path) -> None:
    with (
        cluster_directory(tmp_path, 3),
        pytest.raises(StorageError, match="held by another process"),
        cluster_directory(tmp_path, 3),
    ):
        pass


def test_the_settings_are_what_a_node_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / 'a "quoted" näme'
    with cluster_directory(data, 3) as directory:
        ports = {node: NodePorts(7000 + place, 8000 + place) for place, node in enumerate(NODES)}
        directory.write_settings(ports, "info")
        configs = [load_config(directory.settings_file(node)) for node in NODES]
    assert [config.node_id for config in configs] == NODES
    assert [config.data for config in configs] == [data.resolve() / name for name in NODES]
    assert [config.socket.port for config in configs] == [7000, 7001, 7002]
    assert [config.http.port for config in configs if config.http] == [8000, 8001, 8002]
    voters = [config.peers.voters for config in configs if config.peers and config.peers.voters]
    assert len(voters) == 3
    assert all({node: where.port for node, where in one.items()} == directory.peers for one in voters)


def test_a_nodes_environment_says_nats_and_nothing_that_is_decided_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SOCKET__PORT", "1"), ("NATS__URLS", "[]"), ("CHECKPOINT_INTERVAL", "PT3S")):
        monkeypatch.setenv(f"JETSTREAM_NODE_{name}", value)
    nats = {"urls": ["nats://a:1", "nats://b:2"], "token": "sesame", "tls": {"ca": tmp_path / "ca.pem"}}
    environment = node_environment(nats)
    with cluster_directory(tmp_path, 3) as directory:
        directory.write_settings(dict.fromkeys(NODES, NodePorts(7000, None)), "info", LogFormat.JSON)
        settings = directory.settings_file(NODES[0])
    for name in ("SOCKET__PORT", "NATS__URLS"):
        monkeypatch.delenv(f"JETSTREAM_NODE_{name}")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = load_config(settings)
    assert config.nats.urls == ("nats://a:1", "nats://b:2")
    assert config.nats.token is not None
    assert config.nats.token.get_secret_value() == "sesame"
    assert config.nats.tls is not None
    assert config.nats.tls.ca == tmp_path / "ca.pem"
    assert config.socket.port == 7000
    assert config.log_format is LogFormat.JSON
    assert config.checkpoint_interval.total_seconds() == 3
    assert "sesame" not in settings.read_text()
    assert tomllib.loads(settings.read_text())["log_level"] == "info"


def test_ports_follow_the_first_one_or_are_free_ones() -> None:
    assert ports_of(NODES, 9292, ()) == {"a": 9292, "b": 9293, "c": 9294}
    assert len(set(ports_of(NODES, 0, ()).values())) == 3
    assert len(set(free_ports(5))) == 5


@pytest.mark.parametrize(
    ("first", "said"), [(65_534, "do not find 3 ports"), (9291, "port 9293 would be used")]
)
def test_ports_that_are_not_there_are_refused(first: int, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        ports_of(NODES, first, {9293})


@pytest.mark.parametrize(
    ("content", "error"),
    [({"peer_ports": "none"}, CorruptDataError), ({"peer_ports": {"a": 1}}, InvalidConfig)],
)
def test_a_directory_that_says_something_else_is_refused(
    tmp_path: Path, content: dict[str, object], error: type[JetstreamError]
) -> None:
    disk = OsDisk(tmp_path)
    write_state(disk, "cluster", content)  # type: ignore[arg-type]  # JSON values
    disk.close()
    with pytest.raises(error), cluster_directory(tmp_path, 3):
        pass
