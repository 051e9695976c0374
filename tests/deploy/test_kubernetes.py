"""The manifests: a node takes what they say of a pod, and they are what Helm makes of the chart.

No Kubernetes runs them here. Where a program that a test needs cannot be had it is skipped, and says so.
"""

import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from jetstream.node.settings.node_config import LogFormat, NodeConfig, load_config
from tests.support.commands import REPOSITORY, WAIT_SECONDS
from tests.support.go_programs import NotBuildable, deployment_commands
from tests.support.growing_cluster import client_of, until_info
from tests.support.nats_server import NatsServer
from tests.support.nodes import run
from tests.support.page_examples import blocks

CHART: Final = REPOSITORY / "deploy" / "helm" / "jetstream"
BASE: Final = REPOSITORY / "deploy" / "kubernetes"
IMAGE_SETTINGS: Final = REPOSITORY / "containers" / "node.toml"
PROGRAM: Final = "/opt/jetstream/bin/jetstream"
ALL_VALUES: Final = (
    "serviceMonitor=true,tls.secret=pods,tls.serverName=jetstream,nats.credentialsSecret=nats,nats.caSecret=nats-ca,tier.secret=tier,"
    "serviceAccountName=tiers,storage.className=fast,env[0].name=JETSTREAM_NODE_RACK,env[0].value=a"
)


def parsed(text: str) -> dict[str, dict[str, Any]]:
    """Return the manifests by their kinds."""
    return {manifest["kind"]: manifest for manifest in yaml.safe_load_all(text)}


def manifests() -> dict[str, dict[str, Any]]:
    return parsed((BASE / "jetstream.yaml").read_text())


def container_of(stateful_set: dict[str, Any]) -> dict[str, Any]:
    [container] = stateful_set["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def environment_of(stateful_set: dict[str, Any], ordinal: int) -> dict[str, str]:
    """Return a pod's environment as Kubernetes makes it: names put in, secrets known by their keys."""
    fields = {
        "metadata.name": f"{stateful_set['metadata']['name']}-{ordinal}",
        "metadata.namespace": "default",
    }
    found: dict[str, str] = {}
    for variable in container_of(stateful_set)["env"]:
        source = variable.get("valueFrom", {})
        if "fieldRef" in source:
            found[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "secretKeyRef" in source:
            found[variable["name"]] = f"of-{source['secretKeyRef']['key']}"
        else:
            found[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], variable["value"])
    return found


def settings_of(environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> NodeConfig:
    with monkeypatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        return load_config(IMAGE_SETTINGS)


def command_of(stateful_set: dict[str, Any], program: str) -> list[str]:
    *shell, script = container_of(stateful_set)["command"]
    assert script.count(PROGRAM) == 1
    return [*shell, script.replace(PROGRAM, program)]


def test_a_node_takes_the_settings_of_each_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    found = manifests()
    ports = {port["name"]: port["containerPort"] for port in container_of(found["StatefulSet"])["ports"]}
    for ordinal in range(found["StatefulSet"]["spec"]["replicas"]):
        config = settings_of(environment_of(found["StatefulSet"], ordinal), monkeypatch)
        address = f"jetstream-{ordinal}.jetstream.default.svc"
        assert (config.node_id, str(config.data)) == (f"jetstream-{ordinal}", "/data")
        assert config.peers is not None
        assert config.http is not None
        assert config.peers.advertise is not None
        assert (config.peers.advertise.host, config.peers.advertise.port) == (address, ports["peers"])
        assert (config.socket.advertise, config.socket.port) == (address, ports["socket"])
        assert config.http.port == ports["http"]
        tokens = [section.token for section in (config.peers, config.socket, config.http)]
        told = [token.get_secret_value() for token in tokens if token is not None]
        assert told == ["of-peers-token", "of-socket-token", "of-http-token"]
        assert config.log_format is LogFormat.JSON
        assert config.nats.urls == ("nats://nats:4222",)


@pytest.mark.parametrize(
    ("pod", "place"), [("jetstream-0", "--init"), ("jetstream-1", "--join"), ("a-10", "--join")]
)
def test_the_pod_with_ordinal_0_begins_the_cluster_and_others_join(pod: str, place: str) -> None:
    command = command_of(manifests()["StatefulSet"], "echo")
    said = subprocess.run(command, env={"POD_NAME": pod}, capture_output=True, text=True, check=True).stdout
    assert said == f"node --config /etc/jetstream/node.toml --json {place}\n"


def test_a_pod_may_do_nothing_but_write_to_its_volume() -> None:
    pod = manifests()["StatefulSet"]["spec"]["template"]["spec"]
    dockerfile = (REPOSITORY / "Dockerfile").read_text()
    user = pod["securityContext"].pop("runAsUser")
    assert f"USER {user}:{pod['securityContext'].pop('runAsGroup')}" in dockerfile
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "fsGroup": user,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    [mount] = container["volumeMounts"]
    assert f"VOLUME {mount['mountPath']}\n" in dockerfile


def test_the_parts_know_each_other_by_one_name_and_one_set_of_labels() -> None:
    found = manifests()
    labels = found["StatefulSet"]["metadata"]["labels"]
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"]
    assert found["StatefulSet"]["spec"]["template"]["metadata"]["labels"] == labels
    assert found["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    monitor = parsed((BASE / "servicemonitor.yaml").read_text())["ServiceMonitor"]
    assert monitor["spec"]["selector"]["matchLabels"] == labels
    assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["http"]


def test_the_chart_is_of_the_projects_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (chart["version"], chart["appVersion"]) == (project["version"], project["version"])


def test_kustomize_makes_what_the_page_says_of_the_base(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("NOTHING WAS KUSTOMIZED: there is no kubectl on the PATH")
    shutil.copytree(BASE, tmp_path / "kubernetes")
    (tmp_path / "overlay").mkdir()
    [overlay] = blocks("docs/kubernetes.md", "yaml")
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    done = subprocess.run(
        ["kubectl", "kustomize", tmp_path / "overlay"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = parsed(done.stdout)
    assert {manifest["metadata"]["namespace"] for manifest in made.values()} == {"streams"}
    assert container_of(made["StatefulSet"])["image"] == "REGISTRY/jetstream:0.1.0"
    environment = environment_of(made["StatefulSet"], 1)
    assert environment["JETSTREAM_NODE_NATS__URLS"] == '["nats://nats.messaging:4222"]'
    assert environment.keys() == environment_of(manifests()["StatefulSet"], 1).keys()


def applied_rules() -> str:
    """Return what the page's command gives to kubectl."""
    [command] = [block for block in blocks("docs/monitoring.md", "sh") if "kubectl" in block]
    script = f"kubectl() {{ cat; }}\n{command}"
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.defpath},
    )
    return done.stdout


def test_the_rules_go_to_prometheus_operator_as_they_are() -> None:
    rule = parsed(applied_rules())["PrometheusRule"]
    assert rule["spec"] == yaml.safe_load((REPOSITORY / "deploy/prometheus/rules.yaml").read_text())


@pytest.fixture(scope="module")
def commands() -> Path:
    try:
        return deployment_commands()
    except NotBuildable as reason:
        pytest.skip(f"THE CHART WAS NOT RENDERED: {reason}")


def rendered(commands: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ("template", "jetstream", str(CHART), "--kube-version", "1.32", *options)
    return subprocess.run(
        [commands / "helm", *command], capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
    )


@pytest.mark.slow("tests/deploy/test_kubernetes.py")
def test_the_base_is_what_helm_makes_of_the_chart(commands: Path) -> None:
    assert rendered(commands).stdout == (BASE / "jetstream.yaml").read_text()
    monitor = ("--set", "serviceMonitor=true", "--show-only", "templates/servicemonitor.yaml")
    assert rendered(commands, *monitor).stdout == (BASE / "servicemonitor.yaml").read_text()


@pytest.mark.slow("tests/deploy/test_kubernetes.py")
def test_the_types_of_kubernetes_and_of_prometheus_operator_take_the_manifests(commands: Path) -> None:
    def read(text: str) -> subprocess.CompletedProcess[str]:
        program = [commands / "manifests"]
        return subprocess.run(program, input=text, capture_output=True, text=True, check=False)

    text = f"{rendered(commands, '--set', ALL_VALUES).stdout}---\n{applied_rules()}"
    taken = read(text)
    kinds = ["PodDisruptionBudget", "Service", "StatefulSet", "ServiceMonitor", "PrometheusRule"]
    assert (taken.returncode, taken.stdout.split()) == (0, kinds), taken.stderr
    refused = read(text.replace("minReadySeconds", "minReadySecond"))
    assert (refused.returncode, "minReadySecond" in refused.stderr) == (1, True)


@pytest.mark.slow("tests/deploy/test_kubernetes.py")
def test_a_node_takes_all_settings_of_the_chart(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = rendered(commands, "--set", ALL_VALUES).stdout
    stateful_set = parsed(text)["StatefulSet"]
    config = settings_of(environment_of(stateful_set, 0), monkeypatch)
    assert config.peers is not None
    assert config.peers.tls is not None
    assert config.socket.tls is not None
    assert config.http is not None
    assert config.http.tls is not None
    assert config.tier is not None
    assert config.rack == "a"
    assert config.nats.tls is not None
    files = {config.peers.tls.ca, config.http.tls.key, config.nats.credentials, config.nats.tls.ca}
    mounts = {Path(mount["mountPath"]) for mount in container_of(stateful_set)["volumeMounts"]}
    assert {file.parent for file in files if file is not None} == mounts - {Path("/data")}
    probes = [container_of(stateful_set)[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")]
    assert {probe["scheme"] for probe in probes} == {"HTTPS"}


@pytest.mark.slow("tests/deploy/test_kubernetes.py")
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("replica=3", "replica"),
        ("replicas=2", "replicas"),
        ("serviceMonitor=true,tls.secret=x", "tls.serverName"),
    ],
)
def test_helm_refuses_a_value_that_would_do_nothing_or_harm(commands: Path, value: str, reason: str) -> None:
    refused = rendered(commands, "--set", value)
    assert (refused.returncode, reason in refused.stderr) == (1, True)


class Pod:
    """A process with a pod's command and environment, on an address of loopback in place of its own."""

    def __init__(self, ordinal: int, directory: Path, network: str, url: str) -> None:
        stateful_set = manifests()["StatefulSet"]
        environment = environment_of(stateful_set, ordinal)
        self.name, self.address = environment["POD_NAME"], f"{network}.{ordinal + 1}"
        settings = directory / f"{self.name}.toml"
        settings.write_text(IMAGE_SETTINGS.read_text().replace("/data", str(directory / self.name)))
        *shell, script = command_of(stateful_set, f"{sys.executable} -m jetstream")
        for public in (environment["POD_ADDRESS"], "0.0.0.0"):
            environment = {name: value.replace(public, self.address) for name, value in environment.items()}
        self.process = subprocess.Popen(
            [*shell, script.replace("/etc/jetstream/node.toml", str(settings))],
            cwd=REPOSITORY,
            env={**environment, "PATH": os.defpath, "JETSTREAM_NODE_NATS__URLS": json.dumps([url])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def until_ready(self) -> None:
        assert self.process.stdout is not None
        assert b'{"event":"ready"}\n' in iter(self.process.stdout.readline, b""), "it has ended"

    def answers(self, path: str, token: str = "") -> int:
        """Return the status of its HTTP port's answer."""
        with closing(http.client.HTTPConnection(self.address, 9293, timeout=WAIT_SECONDS)) as connection:
            connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
            return connection.getresponse().status


@pytest.fixture
def pods(tmp_path: Path, nats_server: NatsServer) -> Iterator[list[Pod]]:
    network = f"127.{random.randrange(2, 255)}.{random.randrange(255)}"
    pods = [Pod(ordinal, tmp_path, network, nats_server.url) for ordinal in range(3)]
    try:
        yield pods
    finally:
        for pod in pods:
            pod.process.kill()
            pod.process.communicate()


@pytest.mark.slow("tests/deploy/test_kubernetes.py")
def test_three_pods_become_a_cluster_and_their_probes_answer(
    pods: list[Pod], nats_server: NatsServer
) -> None:
    async def test() -> None:
        async with client_of(nats_server.url) as client:
            await until_info(client, lambda info: info["voters"] == [pod.name for pod in pods])

    for pod in pods:
        pod.until_ready()
    run(test())
    probes = [container_of(manifests()["StatefulSet"])[f"{kind}Probe"] for kind in ("liveness", "readiness")]
    for pod in pods:
        assert [pod.answers(probe["httpGet"]["path"]) for probe in probes] == [200, 200]
        assert (pod.answers("/metrics"), pod.answers("/metrics", "of-http-token")) == (401, 200)
    pods[0].process.send_signal(signal.SIGTERM)
    assert pods[0].process.wait(WAIT_SECONDS) == 0, "the node is the process that is told to stop"
