"""The ``jetstream`` command: every sub-command in one place.

Each command is a thin shell: parse, call the client library, a node or the log, print. What it prints and
how it ends is a promise to scripts (docs/cli.md).
"""

from typing import Annotated

import typer

from jetstream.cli import (
    bench,
    cluster,
    cursors,
    demo,
    elections,
    groups,
    inspect_files,
    moves,
    pipeline,
    pipeline_archive,
    publish,
    read,
    serve,
    streams,
    tiers,
)
from jetstream.cli.console import print_line
from jetstream.cli.help_text import EXIT_CODES_HELP, add_command
from jetstream.node.node import VERSION

app = typer.Typer(
    name="jetstream",
    help="A durable log for NATS: plain NATS in, a durable Arrow log, acks out.",
    epilog=EXIT_CODES_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a traceback with local variables could show a secret
    rich_markup_mode="rich",
)
stream_app = typer.Typer(
    help="Create, list, look at, change and delete streams.", no_args_is_help=True, rich_markup_mode="rich"
)
cluster_app = typer.Typer(
    help="Look at and change the cluster's nodes.", no_args_is_help=True, rich_markup_mode="rich"
)
cursor_app = typer.Typer(
    help="Look at consumers' cursors, set and delete them.", no_args_is_help=True, rich_markup_mode="rich"
)
group_app = typer.Typer(
    help="Look at consumer groups, set their cursors and delete them.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
tier_app = typer.Typer(help="Look at an object store.", no_args_is_help=True, rich_markup_mode="rich")
pipeline_app = typer.Typer(
    help="Run jobs on Spark over streams, configured, not coded.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
bench_app = typer.Typer(
    help="Measure a running cluster as an application on this machine sees it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
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


add_command(app, "up", serve.up, serve.UP_EXAMPLES)
add_command(app, "node", serve.node, serve.NODE_EXAMPLES)
app.add_typer(cluster_app, name="cluster")
add_command(cluster_app, "info", cluster.info, cluster.INFO_EXAMPLES)
add_command(cluster_app, "drain", moves.drain, moves.DRAIN_EXAMPLES)
add_command(cluster_app, "rebalance", moves.rebalance, moves.REBALANCE_EXAMPLES)
add_command(cluster_app, "remove", moves.remove, moves.REMOVE_EXAMPLES)
app.add_typer(stream_app, name="stream")
add_command(stream_app, "create", streams.create, streams.CREATE_EXAMPLES)
add_command(stream_app, "ls", streams.list_streams, streams.LIST_EXAMPLES)
add_command(stream_app, "info", streams.info, streams.INFO_EXAMPLES)
add_command(stream_app, "update", streams.update, streams.UPDATE_EXAMPLES)
add_command(stream_app, "reassign", moves.reassign, moves.REASSIGN_EXAMPLES)
add_command(stream_app, "elect", elections.elect, elections.ELECT_EXAMPLES)
add_command(stream_app, "truncate", streams.truncate, streams.TRUNCATE_EXAMPLES)
add_command(stream_app, "delete", streams.delete, streams.DELETE_EXAMPLES)
add_command(stream_app, "restore", tiers.restore, tiers.RESTORE_EXAMPLES)
app.add_typer(cursor_app, name="cursor")
add_command(cursor_app, "ls", cursors.list_cursors, cursors.LIST_EXAMPLES)
add_command(cursor_app, "get", cursors.get, cursors.GET_EXAMPLES)
add_command(cursor_app, "set", cursors.set_cursor, cursors.SET_EXAMPLES)
add_command(cursor_app, "delete", cursors.delete, cursors.DELETE_EXAMPLES)
app.add_typer(group_app, name="group")
add_command(group_app, "ls", groups.list_groups, groups.LIST_EXAMPLES)
add_command(group_app, "info", groups.info, groups.INFO_EXAMPLES)
add_command(group_app, "lag", groups.lag, groups.LAG_EXAMPLES)
add_command(group_app, "reset", groups.reset, groups.RESET_EXAMPLES)
add_command(group_app, "delete", groups.delete, groups.DELETE_EXAMPLES)
app.add_typer(tier_app, name="tier")
add_command(tier_app, "ls", tiers.list_store, tiers.LIST_EXAMPLES)
add_command(app, "pub", publish.pub, publish.PUB_EXAMPLES)
add_command(app, "read", read.read, read.READ_EXAMPLES)
app.add_typer(pipeline_app, name="pipeline")
add_command(pipeline_app, "table", pipeline.table, pipeline.TABLE_EXAMPLES)
add_command(pipeline_app, "aggregate", pipeline.aggregate, pipeline.AGGREGATE_EXAMPLES)
add_command(pipeline_app, "archive", pipeline_archive.archive, pipeline_archive.ARCHIVE_EXAMPLES)
add_command(pipeline_app, "merge", pipeline_archive.merge, pipeline_archive.MERGE_EXAMPLES)
add_command(pipeline_app, "backfill", pipeline_archive.backfill, pipeline_archive.BACKFILL_EXAMPLES)
add_command(pipeline_app, "replay", pipeline_archive.replay, pipeline_archive.REPLAY_EXAMPLES)
app.add_typer(bench_app, name="bench")
add_command(bench_app, "publish", bench.publish, bench.BENCH_PUBLISH_EXAMPLES)
add_command(bench_app, "read", bench.read, bench.BENCH_READ_EXAMPLES)
add_command(bench_app, "latency", bench.latency, bench.BENCH_LATENCY_EXAMPLES)
add_command(app, "inspect", inspect_files.inspect, inspect_files.INSPECT_EXAMPLES)
add_command(app, "demo", demo.demo, demo.DEMO_EXAMPLES)
