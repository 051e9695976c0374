"""``jetstream read``: write the records of a stream as lines, Arrow or Parquet."""

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, get_args

import pyarrow as pa
import typer

from jetstream.cli.client_connection import connected
from jetstream.cli.group_read import GroupOptions, GroupReading
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_option
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.output.console import reading_progress, run_async
from jetstream.cli.output.record_format import RecordFormat
from jetstream.cli.output.record_output import record_output
from jetstream.cli.program.help_text import StreamArgument
from jetstream.client.connection import JetstreamClient, ReadOptions
from jetstream.client.read.places import parse_end, parse_start
from jetstream.client.read.reader import BatchReader
from jetstream.client.read.stream_table import LatestRecords
from jetstream.protocol.requests import Column

READ_EXAMPLES: Final = (
    "jetstream read orders",
    "jetstream read orders --from 2026-03-01T12:00:00Z --to 2026-03-02 --format text",
    "jetstream read orders --from latest --follow",
    "jetstream read orders --from -10",
    "jetstream read orders --from -1h --to -5m",
    "jetstream read orders --subject 'orders.*.eu' --columns value",
    "jetstream read prices --latest-by-key",
    "jetstream read orders --from 1000 --limit 10 | jq -r .value",
    "jetstream read orders --to 2026-03-01 --format parquet --output orders.parquet",
    "jetstream read orders --from latest --follow --format arrow | python consume.py",
    "jetstream read orders --group billing --limit 100 --timeout 10s",
)

_PATIENCE_S: Final = {False: 5.0, True: 300.0}
"""How long a node may be away before the command gives up: one that follows waits out a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """Where to begin and where to end."""

    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="earliest, latest, an offset, -10 (so many before the end), -1h (so long ago), an ISO 8601 "
            "time (UTC), or a transaction id like txid:42.",
        ),
    ] = "earliest"
    end: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Where to stop, exclusive: end (what is committed now, the same as latest), an offset, -10, "
            "-1h or a time.",
        ),
    ] = None
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for new records instead of stopping at the end.")
    ] = False

    def options(self) -> ReadOptions:
        """Return them as a reader's options."""
        return ReadOptions(
            start=parse_option(parse_start, self.start),
            end=parse_option(parse_end, self.end) if self.end is not None else None,
            follow=self.follow,
            retry_s=_PATIENCE_S[self.follow],
        )


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
    latest_by_key: Annotated[
        bool,
        typer.Option("--latest-by-key", help="Only the last record of each key, and none that are deleted."),
    ] = False
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
            if self.latest_by_key and not {"key", "value"} <= set(chosen["columns"]):
                raise typer.BadParameter("--latest-by-key goes by key and value: name both in --columns")
        return chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationOptions:
    """The format of the records that are read, and their destination."""

    record_format: Annotated[
        RecordFormat, typer.Option("--format", help="JSON lines, text, an Arrow IPC stream or Parquet.")
    ] = RecordFormat.JSONL
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to this file instead of standard output; it is there when it is complete.",
        ),
    ] = None

    def checked(self, follow: bool) -> "DestinationOptions":
        """Refuse what cannot be written there.

        Raises:
            typer.BadParameter: bytes for a terminal, a Parquet file without a name, a file without an end,
                or a name that is taken by something else than a file.
        """
        if follow and (self.output is not None or self.record_format is RecordFormat.PARQUET):
            raise typer.BadParameter(
                "a file is complete once the end is read, and --follow has none: leave out --follow, "
                "or follow with --format jsonl, text or arrow on standard output"
            )
        if self.output is None:
            if self.record_format is RecordFormat.PARQUET:
                raise typer.BadParameter("--format parquet needs --output FILE")
            if self.record_format is RecordFormat.ARROW and sys.stdout.isatty():
                raise typer.BadParameter("--format arrow is not for a terminal: use --output FILE or a pipe")
        elif self.output.exists() and not self.output.is_file():
            raise typer.BadParameter(f"--output {self.output} is there and is no file")
        return self

    @property
    def on_terminal(self) -> bool:
        """Whether a person watches the records themselves."""
        return self.output is None and sys.stdout.isatty()


def read(
    nats: NatsOptions,
    socket: SocketOptions,
    stream: StreamArgument,
    selected: SelectionOptions,
    destination: DestinationOptions,
    range_options: RangeOptions,
    member: GroupOptions,
) -> None:
    """Write committed records in order: one line each, or as Arrow or Parquet.

    Without --follow the end is what is committed now. JSON lines have offset, timestamp, subject, value and,
    where set, key, headers and txid; bytes that are not UTF-8 stand as base64 under the name with _base64
    behind it; a null value is a tombstone. Arrow and Parquet have the log's own columns. The node does not
    send what --subject, --key and --columns leave out.

    With --group it is a member of a consumer group: it shares the partitions with the other members, reads on
    at the group's cursors (--from is where there is none), waits for new records until --limit, --timeout or
    an interrupt, and commits what it has written. After a crash some of it comes again. Each line says of
    which stream it is.
    """
    options = range_options.options()
    options.update(selected.options())
    if range_options.follow and selected.latest_by_key:
        raise typer.BadParameter("which record is a key's last is known at an end, and --follow has none")
    member.check(
        has_end=range_options.end is not None or selected.latest_by_key or destination.output is not None
    )
    checked = destination.checked(range_options.follow or member.group is not None)
    if member.group is None:
        run_async(_read(connected(nats, socket), stream, options, selected, checked))
    else:
        reading = GroupReading(stream, member, options, selected.limit)
        run_async(_read_as_member(connected(nats, socket), reading, checked.record_format))


def _columns(text: str) -> list[Column]:
    known = get_args(Column)
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise typer.BadParameter(f"--columns: {', '.join(unknown)}: there are {', '.join(known)}")
    return [column for column in known if column in names]


async def _last_of(batches: BatchReader) -> AsyncIterator[pa.RecordBatch]:
    """Yield the last record of each key, once all are read; what they need is in memory."""
    latest = LatestRecords()
    async for batch in batches:
        latest.add(batch)
    for batch in latest.table().to_batches():
        yield batch


async def _read(
    connecting: AbstractAsyncContextManager[JetstreamClient],
    stream: str,
    options: ReadOptions,
    selected: SelectionOptions,
    destination: DestinationOptions,
) -> None:
    following = options.get("follow", False)
    with (
        record_output(
            destination.record_format, destination.output, following, options.get("columns")
        ) as output,
        reading_progress(f"reading {stream}", quiet=following or destination.on_terminal) as told,
    ):
        left = selected.limit
        if left == 0:
            return
        options["progress"] = told
        async with (
            connecting as client,
            client.read_batches(stream, **options) as batches,
        ):
            async for batch in _last_of(batches) if selected.latest_by_key else batches:
                wanted = batch if left is None else batch.slice(0, left)
                output.write(wanted)
                if left is not None:
                    left -= wanted.num_rows
                    if left <= 0:
                        return


async def _read_as_member(
    connecting: AbstractAsyncContextManager[JetstreamClient],
    reading: GroupReading,
    record_format: RecordFormat,
) -> None:
    columns = reading.wanted.get("columns")
    with record_output(record_format, None, at_once=True, columns=columns) as output:
        async with connecting as client:
            await reading.write(client, output)
