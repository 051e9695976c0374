"""``jetstream up`` and ``jetstream node``: run one node in the foreground until told to stop."""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Final

import typer

from envelope.errors import RequestError
from jetstream.cli.options.nats_options import NatsAccess, NatsOptions, server_urls
from jetstream.cli.output.background_lines import BackgroundLines, LogHandler
from jetstream.cli.output.console import run_async
from jetstream.cli.output.log_lines import SHAPES
from jetstream.cli.program.help_text import Json
from jetstream.cli.serve.cluster import ClusterPlan, check_node_count, serve_cluster
from jetstream.cli.serve.data_directory import EMBEDDED_NATS_DIRECTORY, claim_data_directory
from jetstream.cli.serve.process_tuning import tune_allocator, tune_collector
from jetstream.cli.serve.running import (
    Embedded,
    Interruptible,
    end_of_server_sets,
    report,
    report_stopping,
    say_endpoint,
    signals_set,
)
from jetstream.node.nats.embedded_server import EmbeddedNatsServer
from jetstream.node.node import Node
from jetstream.node.settings.node_config import LogFormat, NodeConfig, load_config
from metadata.node.admission.descriptors import raise_limit

NATS_PORT_DEFAULT: Final = 4222

UP_EXAMPLES: Final = (
    "jetstream up",
    "jetstream up --data /var/lib/jetstream --port 9292",
    "jetstream up --nodes 3 --data cluster-data",
    "jetstream up --nats nats://nats.example.com:4222 --creds node.creds",
)
NODE_EXAMPLES: Final = (
    "jetstream node --config /etc/jetstream/node.toml",
    "jetstream node --init --data a --advertise 127.0.0.1:9401 --nats nats://127.0.0.1:4222",
    "jetstream node --join --data b --advertise 127.0.0.1:9402 --port 9302 --nats nats://127.0.0.1:4222",
    "JETSTREAM_NODE_SOCKET__PORT=9393 jetstream node --config node.toml --json",
)


Advertise = Annotated[
    str | None,
    typer.Option(
        "--advertise",
        metavar="HOST:PORT",
        help="Where other nodes reach this one, which listens there; without it nobody can join it.",
    ),
]


LogFormatOption = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        envvar="JETSTREAM_NODE_LOG_FORMAT",
        help="Of the log on standard error: lines of text, or of JSON with the fields of each event.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """Where one node keeps its data and listens."""

    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where streams are kept; made if it is not there.")
    ] = Path("jetstream-data")
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65_535,
            help="Socket for readers (default 9292); 0 takes a free one. Of several nodes, the first one's.",
        ),
    ] = None
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port",
            min=0,
            max=65_535,
            help="Serve the console, records, probes and metrics over HTTP on this port; 0 takes a free one. "
            "Off by default.",
        ),
    ] = None
    nats_port: Annotated[
        int,
        typer.Option(
            "--nats-port", min=0, max=65_535, help="Port of the embedded NATS server; 0: a free one."
        ),
    ] = NATS_PORT_DEFAULT
    advertise: Advertise = None
    log_level: Annotated[
        str,
        typer.Option(
            "--log-level",
            envvar="JETSTREAM_NODE_LOG_LEVEL",
            metavar="LEVEL",
            help="Of the log on standard error: debug, info, warning or error.",
        ),
    ] = "warning"
    log_format: LogFormatOption = LogFormat.TEXT

    def settings(self) -> dict[str, object]:
        """Return them as a node's settings."""
        socket = {"socket": {"port": self.port}} if self.port is not None else {}
        http = {"http": {"port": self.http_port}} if self.http_port is not None else {}
        peers = {} if self.advertise is None else {"peers": _peers(self.advertise, is_first=True)}
        log = {"log_level": self.log_level, "log_format": self.log_format}
        return {"data": self.data, **log, **socket, **http, **peers}


def up(
    identity: NatsAccess,
    options: UpOptions,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes to run: 1, 3 or 5, as processes.")] = 1,
    voters: Annotated[
        int | None,
        typer.Option("--voters", help="Of --nodes, so many decide (3 or 5), the others only hold streams."),
    ] = None,
    nats: Annotated[
        str | None,
        typer.Option("--nats", metavar="URL", help="Attach to this NATS server and start none of our own."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a node here and now: with its own NATS server, or attached to yours.

    Prints one line per endpoint and then 'ready'. Stays in the foreground; SIGINT (Ctrl-C) and SIGTERM
    stop it cleanly. Everything is kept in --data and is there again at the next start.

    With --nodes 3 (or 5) it runs a cluster on this machine: each node is a process with a directory in --data
    and the next port after --port and --http-port. A node that dies is started again. The number of nodes
    stays what it was when --data was made. With --voters 3, the other nodes of four or five are data nodes:
    they hold and lead streams, and have no vote in what is decided about the cluster.
    """
    check_node_count(nodes, voters)
    if nodes > 1:
        run_async(serve_cluster(_plan(identity, options, nodes, voters, nats), as_json))
        return
    claim_data_directory(options.data)
    settings = options.settings()
    embedded: Embedded | None = None
    if nats is not None:
        settings["nats"] = {"urls": server_urls(nats), **identity.node_settings()}
    else:
        embedded = Embedded(options.data, options.nats_port)
    run_async(_serve(settings, None, embedded, as_json))


def _plan(
    identity: NatsAccess, options: UpOptions, nodes: int, voters: int | None, nats: str | None
) -> ClusterPlan:
    given = {field.name: getattr(identity, field.name) for field in fields(identity)}
    return ClusterPlan(
        directory=options.data,
        count=nodes,
        voters=voters,
        first_port=options.port,
        first_http_port=options.http_port,
        log_level=options.log_level,
        log_format=options.log_format,
        nats=None if nats is None else NatsOptions(nats=nats, **given),
        nats_settings={} if nats is None else {"urls": server_urls(nats), **identity.node_settings()},
        nats_port=options.nats_port,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Settings of a node that need no file."""

    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings, TOML (docs/operations.md).")
    ] = None
    init: Annotated[
        bool,
        typer.Option(
            "--init", help="Begin the cluster, if this node has no data and none of its name answers."
        ),
    ] = False
    join: Annotated[
        bool, typer.Option("--join", help="Join the cluster that answers over NATS; wait until one does.")
    ] = False
    advertise: Advertise = None
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65_535, help="Socket for readers (default 9292); 0 takes a free one."
        ),
    ] = None
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help="Where streams are kept.")] = None
    node_id: Annotated[
        str | None, typer.Option("--node-id", metavar="NAME", help="Its name; by default of its directory.")
    ] = None
    nats: Annotated[str | None, typer.Option("--nats", metavar="URL", help="NATS server to attach to.")] = (
        None
    )

    log_format: Annotated[
        LogFormat | None, typer.Option("--log-format", help="Of the log on standard error; text by default.")
    ] = None

    def settings(self) -> dict[str, object]:
        """Return them as a node's settings.

        Raises:
            RequestError: both of ``--init`` and ``--join``.
        """
        if self.init and self.join:
            raise RequestError("choose --init or --join")
        peers = _peers(self.advertise, is_first=self.init)
        if self.join:
            peers["init"] = False  # whatever a file says
        given: dict[str, object] = {
            "data": self.data,
            "node_id": self.node_id,
            "log_format": self.log_format,
            "peers": peers or None,
            "socket": None if self.port is None else {"port": self.port},
            "nats": None if self.nats is None else {"urls": server_urls(self.nats)},
        }
        return {name: value for name, value in given.items() if value is not None}


def _peers(advertise: str | None, *, is_first: bool) -> dict[str, object]:
    said: dict[str, object] = {} if advertise is None else {"advertise": advertise}
    return said | ({"init": True} if is_first else {})


def node(options: NodeOptions, as_json: Json = False) -> None:
    """Run a node as its configuration file says: the form for production.

    Settings come from the file, then from the environment (JETSTREAM_NODE_…), which wins, then from options.
    An unknown key in any is an error. NATS is yours: this command starts none.

    The first node of a cluster is told so with --init (peers.init), which makes no difference once it has
    data. All others join: they find it over NATS by the name of the cluster. A node without any peers
    settings is a cluster of its own, that nobody can join until it is started with --advertise.
    """
    run_async(_serve(options.settings(), options.config, None, as_json))


async def _serve(
    settings: dict[str, object], file: Path | None, embedded: Embedded | None, as_json: bool
) -> None:
    """Run one node until a signal, or until it fails."""
    tune_allocator()
    raise_limit()
    stop, start, lines = asyncio.Event(), Interruptible(), BackgroundLines()
    async with AsyncExitStack() as running:
        running.callback(lines.flush)
        running.enter_context(signals_set(stop, start.interrupt))
        if embedded is not None:
            server = await running.enter_async_context(
                EmbeddedNatsServer(embedded.data / EMBEDDED_NATS_DIRECTORY, embedded.port)
            )
            settings["nats"] = {"urls": [server.url]}
            running.enter_context(end_of_server_sets(stop, server, embedded))
        config = load_config(file, settings)
        lines.shape = SHAPES[config.log_format]
        logging.basicConfig(level=config.log_level.upper(), handlers=[LogHandler(lines)], force=True)
        node = Node(config, lines_dropped=lambda: lines.dropped)
        async with start.interruptible():  # it may wait for others, and for as long as they are not there
            await running.enter_async_context(node)
        if not stop.is_set():
            tune_collector()
            _announce(node, config, embedded is not None, as_json)
            await _told_to_stop(stop, node)  # a node that fails cancels this, and its exit raises why
        report_stopping(as_json, lines.say)
    report("stopped", as_json)


async def _told_to_stop(stop: asyncio.Event, node: Node) -> None:
    """Return when a signal has come, or the cluster has removed the node."""
    async with asyncio.TaskGroup() as tasks:
        reasons = [tasks.create_task(event.wait()) for event in (stop, node.removed)]
        await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
        for reason in reasons:
            reason.cancel()


def _announce(node: Node, config: NodeConfig, embedded: bool, as_json: bool) -> None:
    """Print one line per endpoint, then ready."""
    endpoints = list(node.endpoints)
    if embedded and not any(name == "nats" for name, _ in endpoints):
        endpoints.insert(0, ("nats", config.nats.urls[0]))
    endpoints.append(("data", str(config.data.resolve())))
    for name, address in endpoints:
        say_endpoint(name, address, as_json)
    report("ready", as_json)
