"""A real Prometheus, as compose.yaml configures it, watches three real nodes; skipped where there is none."""

import asyncio
import json
import re
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.commands import REPOSITORY, succeeded
from tests.support.growing_cluster import are_alive, client_of, until_info
from tests.support.nats_server import NatsServer
from tests.support.node_cluster import NodeCluster, free_ports
from tests.support.nodes import WAIT_SECONDS, request, run
from tests.support.pauses import pause
from tests.support.prometheus_programs import NoPrometheus, prometheus_program

DEPLOY: Final = REPOSITORY / "deploy"
OF_A_BUSY_DISK: Final = "JetstreamDiskFullIn4h"
"""It foretells from an hour; here it has seconds, in which other tests write."""


class Prometheus:
    """A process that scrapes each second."""

    def __init__(self, directory: Path, ports: list[int]) -> None:
        config = (DEPLOY / "prometheus" / "prometheus.yaml").read_text().replace("15s", "1s")
        for number, port in enumerate(ports):
            config = config.replace(f":932{number + 1}", f":{port}")
        (directory / "prometheus.yaml").write_text(config)
        (directory / "rules.yaml").write_text((DEPLOY / "prometheus" / "rules.yaml").read_text())
        [port] = free_ports(1)
        self._url = f"http://127.0.0.1:{port}/api/v1"
        with (directory / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    prometheus_program("prometheus"),
                    f"--config.file={directory / 'prometheus.yaml'}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stderr=log,
            )

    def get(self, path: str, **parameters: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}") as answer:
            data: dict[str, Any] = json.load(answer)["data"]
            return data

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                try:
                    if condition():
                        return
                except OSError:  # it does not listen yet
                    assert self.process.poll() is None
                await pause()

    def targets(self) -> list[str]:
        """Return the health of each target."""
        return [target["health"] for target in self.get("targets")["activeTargets"]]

    def rules(self) -> dict[str, dict[str, Any]]:
        return {rule["name"]: rule for group in self.get("rules")["groups"] for rule in group["rules"]}

    def without_data(self, expressions: Iterable[str]) -> list[str]:
        return [each for each in expressions if not self.get("query", query=each)["result"]]

    def active(self) -> set[str]:
        """Return the alerts that fire, or will."""
        return {name for name, rule in self.rules().items() if rule.get("state", "inactive") != "inactive"}


@pytest.fixture
def cluster(tmp_path: Path, nats_server: NatsServer) -> Iterator[NodeCluster]:
    nodes = NodeCluster(tmp_path / "cluster", nats_server.url, size=3)
    nodes.start()
    try:
        yield nodes
    finally:
        nodes.close()


@pytest.fixture
def prometheus(tmp_path: Path, cluster: NodeCluster) -> Iterator[Prometheus]:
    directory = tmp_path / "prometheus"
    directory.mkdir()
    try:
        server = Prometheus(directory, [node.http_port for node in cluster.nodes.values()])
    except NoPrometheus as reason:
        pytest.skip(f"NOTHING WAS SCRAPED: {reason}")
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def panels() -> Iterator[str]:
    dashboard = json.loads((DEPLOY / "grafana" / "jetstream.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$job", "jetstream").replace("$stream", ".*")
            yield re.sub(r"\$__\w+", "10s", text)


@pytest.mark.slow("tests/deploy/test_prometheus_rules.py", "tests/deploy/test_grafana_dashboard.py")
def test_every_rule_is_evaluated_every_panel_has_data_and_a_dead_node_is_noticed(
    cluster: NodeCluster, nats_server: NatsServer, prometheus: Prometheus
) -> None:
    async def test() -> None:
        async with client_of(nats_server.url) as client:
            await until_info(client, are_alive("abc"))
            await request(client, "stream.create", name="orders", subject="orders.>", replicas=3)
            await cluster.until_whole(client, "orders")
            cursor = {"stream": "orders", "offset": 0}
            await request(client, "group.reset", group="billing", cursors=[cursor])
            await asyncio.to_thread(succeeded, "pub", "orders.eu", "first", nats=nats_server.url)
            await prometheus.until(lambda: prometheus.targets() == ["up"] * 3)
            await prometheus.until(lambda: {rule["health"] for rule in prometheus.rules().values()} == {"ok"})
            await prometheus.until(lambda: prometheus.without_data(panels()) == [])
            await prometheus.until(lambda: prometheus.active() <= {OF_A_BUSY_DISK})
            cluster["c"].kill()
            alerts = {"JetstreamNodeDown", "JetstreamVoterDead", "JetstreamStreamUnderReplicated"}
            await prometheus.until(lambda: prometheus.active() >= alerts)
            told = [str(alert["annotations"]) for alert in prometheus.get("alerts")["alerts"]]
            assert not [text for text in told if "<error" in text or "{{" in text], "no text is a template"

    run(test())
