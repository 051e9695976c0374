"""What can be told of the image and compose.yaml without an engine: a node takes these settings."""

import pytest

from jetstream.node.settings.node_config import NodeConfig, load_config
from tests.containers.composition import NODES, read_services
from tests.support.commands import REPOSITORY

_IMAGE_SETTINGS = REPOSITORY / "containers" / "node.toml"


def _settings(monkeypatch: pytest.MonkeyPatch, name: str) -> NodeConfig:
    with monkeypatch.context() as environment:
        for key, value in read_services()[name].environment.items():
            environment.setenv(key, value)
        return load_config(_IMAGE_SETTINGS)


def test_each_node_takes_the_settings_of_the_compose_file(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [_settings(monkeypatch, name) for name in NODES]
    assert [config.node_id for config in configs] == list(NODES)
    assert {config.nats.urls for config in configs} == {("nats://127.0.0.1:4222",)}
    assert all(config.http is not None and str(config.data) == "/data" for config in configs)


def test_no_two_services_of_the_compose_file_want_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [_settings(monkeypatch, name) for name in NODES]
    ports = [config.socket.port for config in configs]
    ports += [config.http.port for config in configs if config.http is not None]
    peers = [config.peers for config in configs if config.peers is not None]
    ports += [each.advertise.port for each in peers if each.advertise is not None]
    assert [each.init for each in peers] == [True, False, False]
    assert len(set(ports)) == len(ports) == 3 * len(NODES)
