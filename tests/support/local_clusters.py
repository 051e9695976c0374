"""``jetstream up --nodes``, as a process."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.commands import CommandProcess


@dataclass(slots=True)
class Cluster:
    """A running ``jetstream up --nodes 3``."""

    process: CommandProcess
    nats: str
    nodes: dict[str, dict[str, Any]]


def start(data: Path, *arguments: str, nodes: str = "3", **environment: str) -> Cluster:
    process = CommandProcess(
        *(
            "up",
            "--nodes",
            nodes,
            "--data",
            str(data),
            "--port",
            "0",
            "--nats-port",
            "0",
            "--json",
            *arguments,
        ),
        environment=environment,
    )
    cluster = Cluster(process, "", {})
    while (event := next_event(process))["event"] != "ready":
        if event["event"] == "node":
            cluster.nodes[event["node"]] = event
        elif event["endpoint"] == "nats":
            cluster.nats = event["address"]
    return cluster


def next_event(process: CommandProcess) -> dict[str, Any]:
    line = process.line()
    assert line, process.finished()
    event: dict[str, Any] = json.loads(line)
    return event
