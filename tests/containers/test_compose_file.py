"""What can be told of the image and compose.yaml without an engine: a node takes these settings."""

import pytest
import yaml

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


def test_the_profile_for_monitoring_watches_the_nodes_and_finds_its_files() -> None:
    services = yaml.safe_load((REPOSITORY / "compose.yaml").read_text())["services"]
    watching = {name: keys for name, keys in services.items() if keys.get("profiles") == ["monitoring"]}
    assert watching.keys() == {"prometheus", "grafana"}
    settings = yaml.safe_load((REPOSITORY / "deploy" / "prometheus" / "prometheus.yaml").read_text())
    [job] = settings["scrape_configs"]
    [targets] = job["static_configs"]
    ports = [services[name]["environment"]["JETSTREAM_NODE_HTTP__PORT"] for name in NODES]
    assert targets["targets"] == [f"127.0.0.1:{port}" for port in ports]
    folders = {name: keys["volumes"][0].split(":") for name, keys in watching.items()}
    inside = {name: (REPOSITORY / folder, mounted) for name, (folder, mounted, _) in folders.items()}
    command, environment = watching["prometheus"]["command"], watching["grafana"]["environment"]
    named = {"prometheus": command[0].partition("=")[2], "grafana": environment["GF_PATHS_PROVISIONING"]}
    for name, path in named.items():
        folder, mounted = inside[name]
        assert (folder / path.removeprefix(f"{mounted}/")).exists()
    provisioning = inside["grafana"][0] / "provisioning"
    [provider] = yaml.safe_load((provisioning / "dashboards" / "jetstream.yaml").read_text())["providers"]
    assert provider["options"]["path"] == inside["grafana"][1]
    [source] = yaml.safe_load((provisioning / "datasources" / "jetstream.yaml").read_text())["datasources"]
    assert f"--web.listen-address={source['url'].removeprefix('http://')}" in command
    assert environment["GF_SERVER_HTTP_ADDR"] == "127.0.0.1", "whoever reaches it sees everything"
