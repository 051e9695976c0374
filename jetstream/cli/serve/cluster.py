"""``jetstream up --nodes N``: several nodes in the foreground, with a NATS server of their own or yours."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import typer

from envelope.errors import InvalidConfig
from envelope.types import NodeId
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.output.background_lines import BackgroundLines
from jetstream.cli.output.console import print_json, print_line
from jetstream.cli.output.log_lines import SHAPES
from jetstream.cli.serve.cluster_directory import (
    NODES_MAX,
    ClusterDirectory,
    NodePorts,
    cluster_directory,
    ports_of,
)
from jetstream.cli.serve.data_directory import EMBEDDED_NATS_DIRECTORY
from jetstream.cli.serve.local_cluster import LocalCluster, NodeChange, local_cluster
from jetstream.cli.serve.running import (
    Embedded,
    end_of_server_sets,
    report,
    report_stopping,
    say_endpoint,
    signals_set,
)
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.settings.node_config import ENV_PREFIX, LogFormat
from metadata.limits import VOTERS_ALLOWED

SOCKET_PORT_DEFAULT: Final = 9292


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The options of ``up --nodes``.

    Attributes:
        directory: where everything is kept.
        count: nodes.
        voters: so many of them have a vote in the metadata log; None is all.
        first_port: of the readers' sockets, 0 for free ones; None is the default.
        first_http_port: of the HTTP ports; None opens none.
        log_level: of the nodes' logs.
        log_format: of the nodes' logs, and of what the command says beside them.
        nats: the server to attach to, None to start one.
        nats_settings: the same as a node's ``nats`` settings.
        nats_port: of the server that is started.
    """

    directory: Path
    count: int
    voters: int | None
    first_port: int | None
    first_http_port: int | None
    log_level: str
    log_format: LogFormat
    nats: NatsOptions | None
    nats_settings: Mapping[str, Any]
    nats_port: int


def check_node_count(count: int, voters: int | None = None) -> None:
    """Refuse a number of nodes, or of voters among them, that makes no sense.

    Raises:
        typer.BadParameter: of voters it is even; there are more than five, or more voters than nodes.
    """
    if voters is not None and (voters not in VOTERS_ALLOWED[1:] or not voters <= count <= NODES_MAX):
        raise typer.BadParameter(
            f"--nodes {count} --voters {voters}: choose 3 or 5 voters, and so many nodes or more, up to "
            f"{NODES_MAX}"
        )
    if voters is None and count not in VOTERS_ALLOWED:
        raise typer.BadParameter(
            f"--nodes {count}: choose 1, 3 or 5. Nodes decide by majority, so an even number survives no "
            "more failures than one less (--voters 3 has so many decide, and the others only hold streams); "
            "more than five on one machine are of no use"
        )


async def serve_cluster(plan: ClusterPlan, as_json: bool) -> None:
    """Run the nodes until a signal, or until one cannot be kept alive.

    Raises:
        InvalidConfig: the directory or the ports do not fit; the environment guards a port that is not there.
        UnavailableError: NATS does not answer, or a node was given up.
    """
    stop, lines = asyncio.Event(), BackgroundLines()
    lines.shape = SHAPES[plan.log_format]
    async with AsyncExitStack() as running:
        running.callback(lines.flush)
        running.enter_context(signals_set(stop))
        directory = running.enter_context(cluster_directory(plan.directory, plan.count, plan.voters))
        directory.write_settings(_ports(plan, directory), plan.log_level, plan.log_format)
        nats, settings = plan.nats, plan.nats_settings
        if nats is None:
            embedded = Embedded(plan.directory, plan.nats_port)
            server = await running.enter_async_context(
                EmbeddedNatsServer(embedded.data / EMBEDDED_NATS_DIRECTORY, embedded.port)
            )
            running.enter_context(end_of_server_sets(stop, server, embedded))
            nats, settings = NatsOptions(nats=server.url), {"urls": [server.url]}

        def told(change: NodeChange) -> None:
            if as_json:
                print_json({"event": change.event, "node": change.node, **change.details})
            else:
                lines.say(change.text)

        cluster = await running.enter_async_context(
            local_cluster(directory, settings, told, lines.pass_on, stop)
        )
        tasks = await running.enter_async_context(asyncio.TaskGroup())
        beginning = tasks.create_task(_begin(cluster, directory, nats, plan.nats is None, as_json))
        await stop.wait()
        beginning.cancel()
        report_stopping(as_json, lines.say)
    report("stopped", as_json)


def _ports(plan: ClusterPlan, directory: ClusterDirectory) -> dict[NodeId, NodePorts]:
    first = SOCKET_PORT_DEFAULT if plan.first_port is None else plan.first_port
    nodes, taken = directory.peers.keys(), set(directory.peers.values())
    sockets = ports_of(nodes, first, taken)
    if plan.first_http_port is None:
        _refuse_guarded_nothing()
        return {node: NodePorts(port, None) for node, port in sockets.items()}
    http = ports_of(nodes, plan.first_http_port, taken | set(sockets.values()))
    return {node: NodePorts(port, http[node]) for node, port in sockets.items()}


def _refuse_guarded_nothing() -> None:
    """Refuse settings of an HTTP port where there is none: every node would open the default one."""
    section = f"{ENV_PREFIX}HTTP__"
    names = (name for name in sorted(os.environ) if name.upper().startswith(section))
    stray = next((name for name in names if name.upper() != f"{section}PORT"), None)
    if stray is not None:
        raise InvalidConfig(f"{stray} is set, and there is no port: say --http-port, too")


async def _begin(
    cluster: LocalCluster, directory: ClusterDirectory, nats: NatsOptions, embedded: bool, as_json: bool
) -> None:
    """Wait until all nodes serve, then print their endpoints."""
    async with connected(nats) as client:
        await cluster.until_ready(client)
    if embedded:
        say_endpoint("nats", nats.urls[0], as_json)
    for name, node in cluster.nodes.items():
        if as_json:
            print_json({"event": "node", "node": name, "pid": node.pid, "endpoints": node.endpoints})
        else:
            where = ", ".join(f"{kind} {address}" for kind, address in node.endpoints.items())
            print_line(f"{f'node {name}':<8} {where}, process {node.pid}")
    say_endpoint("data", str(directory.path), as_json)
    report("ready", as_json)
