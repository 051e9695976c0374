"""``jetstream read``: print the records of a stream, one line each."""

from dataclasses import dataclass
from typing import Annotated, Final, get_args

import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.console import print_line, reported_errors, run_async
from jetstream.cli.help_text import StreamArgument
from jetstream.cli.nats_options import NatsOptions
from jetstream.cli.places import parse_place
from jetstream.cli.record_format import RecordFormat, lines_of
from jetstream.client.connection import ReadOptions
from jetstream.protocol.requests import Column

READ_EXAMPLES: Final = (
    "jetstream read orders",
    "jetstream read orders --from 2026-03-01T12:00:00Z --to 2026-03-02 --format text",
    "jetstream read orders --from latest --follow",
    "jetstream read orders --subject 'orders.*.eu' --columns value",
    "jetstream read orders --from 1000 --limit 10 | jq -r .value",
)

_PATIENCE_S: Final = {False: 5.0, True: 300.0}
"""How long a node may be away before the command gives up: one that follows waits out a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionOptions:
    """Which records and columns are printed."""

    subject: Annotated[
        str | None,
        typer.Option("--subject", metavar="PATTERN", help="Only subjects that match, like 'orders.*.eu'."),
    ] = None
    key: Annotated[str | None, typer.Option("--key", help="Only records with this key.")] = None
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="LIST", help="Of key, headers, txid and value only these, like key,value."
        ),
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="Stop after so many records.")] = (
        None
    )

    def options(self) -> ReadOptions:
        """Return them as a reader's options."""
        chosen = ReadOptions()
        if self.subject is not None:
            chosen["subject"] = self.subject
        if self.key is not None:
            chosen["key"] = self.key
        if self.columns is not None:
            chosen["columns"] = _columns(self.columns)
        return chosen


def read(
    nats: NatsOptions,
    stream: StreamArgument,
    selected: SelectionOptions,
    start: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="earliest, latest, an offset, or an ISO 8601 time (UTC)."
        ),
    ] = "earliest",
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="Where to stop, exclusive: latest, an offset or a time."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records instead of stopping at the end.")
    ] = False,
    record_format: Annotated[
        RecordFormat, typer.Option("--format", help="JSON lines or text.")
    ] = RecordFormat.JSONL,
) -> None:
    """Print committed records in order, one line each.

    Without --follow the end is what is committed now. JSON lines have offset, timestamp, subject, value and,
    where set, key, headers and txid; bytes that are not UTF-8 stand as base64 under the name with _base64
    behind it; a null value is a tombstone. What --subject, --key and --columns leave out, the node does not
    send.
    """
    begin = parse_place(start)
    until = parse_place(end) if end is not None else None
    if until == "earliest":
        raise typer.BadParameter("--to earliest is before every record")
    options = ReadOptions(start=begin, end=until, follow=follow, retry_s=_PATIENCE_S[follow])
    options.update(selected.options())
    with reported_errors():
        run_async(_read(nats, stream, options, selected.limit, record_format))


def _columns(text: str) -> list[Column]:
    known = get_args(Column)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"--columns: {', '.join(unknown)}: there are {', '.join(known)}")
    return [column for column in known if column in names]


async def _read(
    nats: NatsOptions,
    stream: str,
    options: ReadOptions,
    limit: int | None,
    record_format: RecordFormat,
) -> None:
    left = limit
    if left == 0:
        return
    async with (
        connected(nats) as client,
        client.read_batches(stream, **options) as batches,
    ):
        async for batch in batches:
            wanted = batch if left is None else batch.slice(0, left)
            print_line("\n".join(lines_of(wanted, record_format)))
            if left is not None:
                left -= wanted.num_rows
                if left <= 0:
                    return
