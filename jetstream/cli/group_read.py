"""``jetstream read --group``: read as a member of a consumer group, at least once."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

import pyarrow as pa
import typer

from jetstream.cli.options.quantities import parse_duration
from jetstream.cli.output.record_output import RecordOutput
from jetstream.cli.program.completion import group_names
from jetstream.client.connection import JetstreamClient, ReadOptions
from jetstream.client.consume.options import ConsumeOptions
from metadata.api.responses import CursorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """As a member of which group to read, and until when."""

    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            metavar="NAME",
            help="Read on where this consumer group is, share with its other members, and commit.",
            autocompletion=group_names,
        ),
    ] = None
    commit_every: Annotated[
        int | None,
        typer.Option(
            "--commit-every",
            metavar="N",
            min=1,
            help="With --group: commit after so many records, and not only every 5 s and at the end.",
        ),
    ] = None
    timeout: Annotated[
        timedelta | None,
        typer.Option(
            "--timeout",
            parser=parse_duration,
            metavar="DURATION",
            help="With --group: stop after so long without a record.",
            show_default=False,
        ),
    ] = None

    def check(self, *, has_end: bool) -> None:
        """Refuse what does not go together.

        Args:
            has_end: something was asked for that takes an end.

        Raises:
            typer.BadParameter: it does not.
        """
        if self.group is None and (self.commit_every is not None or self.timeout is not None):
            raise typer.BadParameter("--commit-every and --timeout are for members: give --group, too")
        if self.group is not None and has_end:
            raise typer.BadParameter(
                "a member of a group reads on without an end: leave out --to, --latest-by-key and --output"
            )
        if self.timeout == timedelta(0):
            raise typer.BadParameter("--timeout 0 reads nothing")

    def member_options(self, read_options: ReadOptions) -> ConsumeOptions:
        """Return the options of a member that reads by ``read_options``."""
        start = read_options.get("start", "earliest")
        assert not isinstance(start, CursorInfo), "a command line names a place"
        chosen = ConsumeOptions(start=start, commit_records=self.commit_every)
        if "subject" in read_options:
            chosen["subject"] = read_options["subject"]
        if "key" in read_options:
            chosen["key"] = read_options["key"]
        if "columns" in read_options:
            chosen["columns"] = read_options["columns"]
        return chosen


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The options of a read by one member of a consumer group."""

    stream: str
    asked: GroupOptions
    wanted: ReadOptions
    """Of what, and from where on if the group has no cursor."""
    limit: int | None
    """Records; None: no limit."""

    async def write(self, client: JetstreamClient, output: RecordOutput) -> None:
        """Write the records of this member's partitions, until the limit or the timeout.

        A batch counts as processed once it is written: the records behind the limit are for the next
        member.
        """
        assert self.asked.group is not None, "as a member of a group"
        options = self.asked.member_options(self.wanted)
        async with client.consume(self.stream, group=self.asked.group, **options) as member:
            batches, left = member.batches(), self.limit
            while left is None or left > 0:
                found = await self._next(batches)
                if found is None:
                    return
                partition, batch = found
                taken = batch if left is None else batch.slice(0, left)
                output.write(taken, partition)
                left = None if left is None else left - taken.num_rows
                if left == 0:  # perhaps not the whole batch was taken: without this it would not count
                    await member.commit({partition: taken.column(0)[-1].as_py() + 1})

    async def _next(
        self, batches: AsyncIterator[tuple[str, pa.RecordBatch]]
    ) -> tuple[str, pa.RecordBatch] | None:
        """Return the next batch and its stream; None if it takes too long, or there is none."""
        seconds = None if self.asked.timeout is None else self.asked.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                return await anext(batches, None)
        except TimeoutError:
            return None
