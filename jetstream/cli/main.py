"""The ``jetstream`` command: every sub-command in one place.

Each command is a thin shell: parse, call the client library, a node or the log, print. Its output and its
exit code are a promise to scripts (docs/cli.md).
"""

from collections.abc import Mapping
from typing import Annotated, Final

import typer

from jetstream.cli.output.console import print_line
from jetstream.cli.program.help_text import EXIT_CODES_HELP
from jetstream.cli.program.lazy_commands import Place, lazy_group
from jetstream.node.runtime.version import VERSION


def _group(name: str, text: str, commands: Mapping[str, Place]) -> typer.Typer:
    return typer.Typer(
        name=name, help=text, cls=lazy_group(commands), no_args_is_help=True, rich_markup_mode="rich"
    )


COMMANDS: Final[Mapping[str, Place | typer.Typer]] = {
    "up": "serve.command:up",
    "node": "serve.command:node",
    "pub": "publish:pub",
    "read": "read:read",
    "mirror": "mirror.command:mirror",
    "backup": "backup.command:backup",
    "restore": "backup.command:restore",
    "inspect": "inspect_files:inspect",
    "demo": "demo.command:demo",
    "cluster": _group(
        "cluster",
        "Look at and change the cluster's nodes.",
        {
            "info": "cluster:info",
            "update": "cluster:update_cluster",
            "drain": "moves:drain",
            "rebalance": "moves:rebalance",
            "remove": "moves:remove",
            "rotate-key": "cluster:rotate_key",
        },
    ),
    "stream": _group(
        "stream",
        "Create, list, look at, change and delete streams.",
        {
            "create": "streams:create",
            "ls": "streams:list_streams",
            "info": "streams:info",
            "update": "streams:update",
            "reassign": "moves:reassign",
            "elect": "elections:elect",
            "truncate": "streams:truncate",
            "set-txid": "streams:set_txid",
            "reset-time": "streams:reset_time",
            "delete": "streams:delete",
            "restore": "tiers:restore",
        },
    ),
    "namespace": _group(
        "namespace",
        "Limit what a namespace's streams may be, and look at what they use.",
        {
            "limit": "namespaces:limit",
            "info": "namespaces:info",
            "ls": "namespaces:list_namespaces",
        },
    ),
    "cursor": _group(
        "cursor",
        "Look at consumers' cursors, set and delete them.",
        {
            "ls": "cursors:list_cursors",
            "get": "cursors:get",
            "set": "cursors:set_cursor",
            "delete": "cursors:delete",
        },
    ),
    "group": _group(
        "group",
        "Look at consumer groups, set their cursors and delete them.",
        {
            "ls": "groups:list_groups",
            "info": "groups:info",
            "lag": "groups:lag",
            "reset": "groups:reset",
            "delete": "groups:delete",
        },
    ),
    "tier": _group("tier", "Look at an object store.", {"ls": "tiers:list_store"}),
    "pipeline": _group(
        "pipeline",
        "Run jobs on Spark over streams, configured, not coded.",
        {
            "table": "pipelines.command:table",
            "aggregate": "pipelines.command:aggregate",
            "archive": "pipelines.archive:archive",
            "merge": "pipelines.archive:merge",
            "backfill": "pipelines.archive:backfill",
            "replay": "pipelines.archive:replay",
        },
    ),
    "bench": _group(
        "bench",
        "Measure a running cluster as an application on this machine sees it.",
        {
            "publish": "bench.command:publish",
            "read": "bench.command:read",
            "latency": "bench.command:latency",
        },
    ),
}

app = typer.Typer(
    name="jetstream",
    help="A durable log for NATS: plain NATS in, a durable Arrow log, acks out.",
    epilog=EXIT_CODES_HELP,
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with local variables could show a secret
    rich_markup_mode="rich",
)


def _show_version(is_set: bool) -> None:
    if is_set:
        print_line(VERSION)
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Take the options that stand before any command."""
