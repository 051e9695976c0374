"""``jetstream group …``: look at consumer groups, at how far they are, set their cursors and delete them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import typer
from pydantic import TypeAdapter

from envelope.errors import RequestError
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import parse_option
from jetstream.cli.options.socket_options import SocketOptions
from jetstream.cli.output.console import (
    print_json,
    print_line,
    print_properties,
    print_result,
    print_table,
    run_async,
)
from jetstream.cli.program.completion import stream_names
from jetstream.cli.program.help_text import GroupArgument, Json
from jetstream.client.admin.group_lag import CursorMove, CursorStatus, GroupLag, PartitionLag, Target
from jetstream.client.admin.groups import ResetOptions
from jetstream.client.read.places import parse_start
from metadata.api.group_responses import GroupInfo, OwnedPartitions

LIST_GROUPS_EXAMPLES: Final = ("jetstream group ls", "jetstream group ls shop/ --json | jq -r .group")
INFO_EXAMPLES: Final = (
    "jetstream group info billing",
    "jetstream group info billing --json | jq '.members | length'",
)
LAG_EXAMPLES: Final = ("jetstream group lag billing", "jetstream group lag billing --json | jq .total")
RESET_EXAMPLES: Final = (
    "jetstream group reset billing --to-earliest",
    "jetstream group reset billing --to-time 2026-03-01T12:00:00Z --stream orders --dry-run",
    "jetstream group reset billing --to-time -1h --dry-run",
    "jetstream group reset billing --shift-by -100 --stream orders --partition 2 --yes",
    "jetstream group reset billing --to-offset 42 --stream clicks --force",
)
DELETE_EXAMPLES: Final = ("jetstream group delete billing", "jetstream group delete billing --force --yes")

_PARTITION: Final = TypeAdapter(PartitionLag)

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Force = Annotated[bool, typer.Option("--force", help="Put out members that there are, first.")]


async def list_groups(
    nats: NatsOptions,
    prefix: Annotated[
        str | None, typer.Argument(metavar="[PREFIX]", help="Only names that begin so, such as a namespace.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the consumer groups by name; with --json one object a line."""
    async with connected(nats) as client:
        found = await client.groups.list(prefix)
    if as_json:
        for group in found:
            print_json(group)
        return
    columns = ("group", "members", "generation", "shard")
    rows = ((group.group, group.members, group.generation, group.shard) for group in found)
    print_table(f"{len(found):,} group{'' if len(found) == 1 else 's'}", columns, rows)


async def info(nats: NatsOptions, group: GroupArgument, as_json: Json = False) -> None:
    """Show a consumer group: its members with what they own, and its cursors.

    A partition that a member gives up is still its own: it was told to stop reading it, as another member is
    to have it.
    """
    async with connected(nats) as client:
        found = await client.groups.info(group)
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(group: GroupInfo) -> None:
    moving = sum(len(owned.partitions) for member in group.members for owned in member.gives_up)
    shown: dict[str, object] = {
        "generation": group.generation,
        "assignor": group.assignor,
        "coordinator": group.coordinator,
        "shard": group.shard,
        "partitions that move": moving,
    }
    print_properties(group.group, shown)
    if group.members:
        columns = ("member", "client", "instance", "subscribes to", "owns", "gives up")
        rows = (
            (
                member.member,
                member.client,
                member.instance,
                ", ".join(member.streams),
                owned_text(member.owned),
                owned_text(member.gives_up),
            )
            for member in group.members
        )
        print_table(f"{len(group.members):,} members", columns, rows)
    rows_of_cursors = (
        (cursor.stream, cursor.partition, cursor.offset, _when(cursor.committed_at), cursor.metadata)
        for cursor in group.cursors
    )
    cursor_columns = ("stream", "partition", "next offset", "committed", "metadata")
    print_table(f"{len(group.cursors):,} cursors", cursor_columns, rows_of_cursors)


def owned_text(owned: Sequence[OwnedPartitions]) -> str:
    """Return what a member owns, stream by stream: ``orders[0-3,7]``."""
    return ", ".join(f"{each.stream}[{_numbers_text(each)}]" for each in owned)


def _numbers_text(owned: OwnedPartitions) -> str:
    """Return numbers as ranges: 0-3,7."""
    runs: list[list[int]] = []
    for number, _ in sorted(owned.partitions):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


async def lag(nats: NatsOptions, group: GroupArgument, as_json: Json = False) -> None:
    """Show how far a consumer group is behind in each partition of the streams that it reads or has read.

    The lag is the number of offsets from the cursor to the high watermark; without a cursor, from where the
    log begins. A dash is what nobody can tell: the stream is gone, or nobody leads it.
    """
    async with connected(nats) as client:
        found = await client.groups.lag(group)
    if as_json:
        print_json(_lag_json(found))
        return
    columns = ("stream", "partition", "cursor", "log start", "high watermark", "lag", "owner", "remark")
    rows = (
        (
            each.stream,
            each.partition,
            each.cursor,
            each.log_start_offset,
            each.high_watermark,
            each.lag,
            each.client,
            _remark(each),
        )
        for each in found.partitions
    )
    print_table(group, columns, rows)
    behind = f"behind by {found.total:,} in {len(found.partitions):,} partitions"
    print_line(behind + (f", of {found.unknown:,} of which nobody can tell" if found.unknown else ""))


def _lag_json(lag: GroupLag) -> dict[str, Any]:
    return {
        "group": lag.info.group,
        "generation": lag.info.generation,
        "members": len(lag.info.members),
        "total": lag.total,
        "unknown": lag.unknown,
        "partitions": [_PARTITION.dump_python(each, mode="json") for each in lag.partitions],
    }


_REMARKS: Final = {
    CursorStatus.CURRENT: "",
    CursorStatus.NONE: "no cursor",
    CursorStatus.EXPIRED: "records were removed unread",
    CursorStatus.AHEAD: "the cursor is above the high watermark",
    CursorStatus.RECREATED: "the cursor is of an earlier stream of that name",
    CursorStatus.OFFLINE: "the stream is offline",
    CursorStatus.NO_STREAM: "there is no such stream",
}


def _remark(partition: PartitionLag) -> str:
    return _REMARKS[partition.standing]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveOptions:
    """Where cursors are put, and which, and how."""

    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To where the log begins.")] = False
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the high watermark of now.")] = False
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", min=0, metavar="OFFSET", help="To this offset.")
    ] = None
    to_time: Annotated[
        str | None,
        typer.Option(
            "--to-time",
            metavar="TIME",
            help="To the first record since then (ISO 8601, UTC; -1h: so long ago).",
        ),
    ] = None
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="±N", help="So far on, or back; at most to an end of the log."),
    ] = None
    stream: Annotated[
        list[str] | None,
        typer.Option(
            "--stream", metavar="NAME", help="Only this stream; repeatable.", autocompletion=stream_names
        ),
    ] = None
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", min=0, metavar="N", help="Only this one of the stream; repeatable."),
    ] = None

    force: Force = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be moved.")] = False
    yes: Yes = False

    def target(self) -> Target | None:
        """Return where to, None with --shift-by.

        Raises:
            typer.BadParameter: not exactly one of them, or no time.
        """
        given: list[Target] = []
        if self.to_earliest:
            given.append("earliest")
        if self.to_latest:
            given.append("latest")
        if self.to_offset is not None:
            given.append(self.to_offset)
        if self.to_time is not None:
            given.append(parse_option(_parse_time, self.to_time))
        if len(given) + (self.shift_by is not None) != 1:
            raise typer.BadParameter(
                "where to? one of --to-earliest, --to-latest, --to-offset, --to-time and --shift-by"
            )
        return given[0] if given else None

    def selection(self) -> ResetOptions:
        """Return which cursors, and by how much."""
        chosen = ResetOptions(dry_run=True)
        if self.shift_by is not None:
            chosen["by"] = self.shift_by
        if self.stream:
            chosen["streams"] = self.stream
        if self.partition:
            if len(set(self.stream or ())) != 1:
                raise typer.BadParameter("--partition: of which stream? give one --stream")
            chosen["partitions"] = self.partition
        return chosen


def _parse_time(text: str) -> datetime | timedelta:
    place = parse_start(text)
    if not isinstance(place, datetime | timedelta):
        raise RequestError(f"{text!r} is neither an ISO 8601 time nor -1h, so long ago")
    return place


async def reset(
    nats: NatsOptions,
    socket: SocketOptions,
    move_options: MoveOptions,
    group: GroupArgument,
    as_json: Json = False,
) -> None:
    """Set where a consumer group reads on; it shows every move and asks, unless --yes.

    Without --stream all streams are meant that the group reads or has read. The group must have no members,
    unless --force: they are put out, and what they have not committed is read again. A group that does not
    exist yet can be given its first cursors with --stream. With --json one object a line, a partition each.
    """
    to, options = move_options.target(), move_options.selection()
    async with connected(nats, socket) as client:
        moves = await client.groups.reset(group, to, **options)
        _show_moves(group, moves, as_json)
        if move_options.dry_run:
            return
        question = f"Set {len(moves):,} cursors of {group}?"
        if not move_options.yes and not typer.confirm(question, err=True):
            raise typer.Exit(1)
        await client.groups.move(group, moves, force=move_options.force)
    if not as_json:
        print_line(f"set {len(moves):,} cursors of {group}")


def _show_moves(group: str, moves: Sequence[CursorMove], as_json: bool) -> None:
    if as_json:
        for move in moves:
            print_json(asdict(move))
        return
    columns = ("stream", "partition", "before", "after")
    print_table(group, columns, ((move.stream, move.partition, move.before, move.after) for move in moves))


def delete(
    nats: NatsOptions,
    group: GroupArgument,
    force: Force = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Delete a consumer group with all its cursors: whoever joins it again begins anew. It asks first."""
    if not yes and not typer.confirm(f"Delete group {group} and all its cursors?", err=True):
        raise typer.Exit(1)
    run_async(_delete(nats, group, force, as_json))


async def _delete(nats: NatsOptions, group: str, force: bool, as_json: bool) -> None:
    async with connected(nats) as client:
        await client.groups.delete(group, force=force)
    print_result({"group": group}, f"deleted group {group}", as_json)


def _when(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")
