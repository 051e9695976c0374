"""``jetstream stream …``: create, list, look at, change, cut and delete streams."""

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from envelope.partition_errors import StreamIsPartitioned
from jetstream.cli.client_connection import connected
from jetstream.cli.options.nats_options import NatsOptions
from jetstream.cli.options.quantities import size_text
from jetstream.cli.options.stream_options import StreamOptions
from jetstream.cli.output.console import (
    print_json,
    print_line,
    print_properties,
    print_result,
    print_table,
    run_async,
)
from jetstream.cli.program.help_text import Json, StreamArgument
from metadata.api.publisher_responses import SetTxidResponse
from metadata.api.responses import (
    DeleteStreamResponse,
    PartitionedStreamInfo,
    PossibleGap,
    ReplicaInfo,
    StreamInfo,
    StreamSummary,
    TierInfo,
    TruncateStreamResponse,
    UncleanElectionInfo,
)

CREATE_EXAMPLES: Final = (
    "jetstream stream create orders --subject 'orders.>'",
    "jetstream stream create clicks --subject 'web.click.*' --sync interval --retention-age 7d",
    "jetstream stream create audit --subject 'svc.>' --ack none --label team=security",
    "jetstream stream create orders --subject 'orders.>' --replicas 3 --min-insync-replicas 2",
    "jetstream stream create prices --subject 'prices.>' --replicas 3 --read-replicas 2",
    "jetstream stream create orders --subject 'orders.>' --partitions 4 --partition-by key",
)
LIST_STREAMS_EXAMPLES: Final = ("jetstream stream ls", "jetstream stream ls --json | jq -r .name")
INFO_EXAMPLES: Final = (
    "jetstream stream info orders",
    "jetstream stream info orders --json | jq .high_watermark",
)
UPDATE_EXAMPLES: Final = (
    "jetstream stream update orders --retention-age 30d",
    "jetstream stream update orders --retention-age 0 --remove-label team",
    "jetstream stream update orders --replicas 3",
    "jetstream stream update orders --partitions 8",
)
TRUNCATE_EXAMPLES: Final = ("jetstream stream truncate orders --before 1000000",)
SET_TXID_EXAMPLES: Final = (
    "jetstream stream set-txid orders 4711",
    "jetstream stream set-txid orders 4711 --yes",
)
RESET_TIME_EXAMPLES: Final = ("jetstream stream reset-time orders",)
DELETE_EXAMPLES: Final = ("jetstream stream delete orders", "jetstream stream delete orders --yes")


async def create(
    nats: NatsOptions,
    settings: StreamOptions,
    name: Annotated[str, typer.Argument(metavar="STREAM", help="Name, unique in the cluster.")],
    subject: Annotated[
        str,
        typer.Option("--subject", metavar="PATTERN", help="NATS subject to store; * and > are wildcards."),
    ],
    as_json: Json = False,
) -> None:
    """Create a stream; what is published on its subject from now on is stored and acked.

    Creating it again with an equal configuration finds it and succeeds; the same name with another
    configuration is refused (exit code 4). With --partitions it is several streams, STREAM/0 and so on, that
    share the messages.
    """
    config = settings.patch()
    async with connected(nats) as client:
        stream = await client.streams.create(name, subject, **config)
    if as_json:
        print_json(stream)
        return
    what = "created" if stream.created else "found"
    parts = "" if isinstance(stream, StreamInfo) else f" in {len(stream.partitions)} partitions"
    print_line(f"{what} stream {name} on {subject}{parts}")


async def list_streams(
    nats: NatsOptions,
    prefix: Annotated[
        str | None, typer.Argument(metavar="[PREFIX]", help="Only names that begin so, such as a namespace.")
    ] = None,
    internal: Annotated[bool, typer.Option("--internal", help="The system's own streams, too.")] = False,
    as_json: Json = False,
) -> None:
    """List the streams by name; with --json one object a line."""
    async with connected(nats) as client:
        streams = await client.streams.list(prefix, internal=internal)
    if as_json:
        for stream in streams:
            print_json(stream)
        return
    _print_summaries(f"{len(streams):,} stream{'' if len(streams) == 1 else 's'}", streams)


def _print_summaries(title: str, streams: Sequence[StreamSummary]) -> None:
    columns = ("stream", "subject", "ack", "leader", "in sync", "first", "committed", "end", "size")
    rows = (
        (
            stream.name,
            stream.subject,
            stream.ack,
            stream.leader,
            f"{len(stream.isr)} of {len(stream.replicas)}",
            stream.log_start_offset,
            stream.high_watermark,
            stream.log_end_offset,
            None if stream.bytes is None else size_text(stream.bytes),
        )
        for stream in streams
    )
    print_table(title, columns, rows)


async def info(nats: NatsOptions, name: StreamArgument, as_json: Json = False) -> None:
    """Show a stream's configuration and its live state: offsets, size, possible gaps, damage, replicas.

    Of a partitioned stream: its configuration and its partitions, each of which can be shown by its own name.

    Of each replica: whether it leads, whether it is in sync, where its log ends, where what it has on disk
    ends, its high watermark, and how many of the leader's records it does not have on disk (lag). A dash is
    what the leader has not heard yet.
    """
    async with connected(nats) as client:
        try:
            stream: StreamInfo | PartitionedStreamInfo = await client.streams.info(name)
        except StreamIsPartitioned:
            stream = await client.streams.partitions(name)
    _show(stream, as_json)


async def update(
    nats: NatsOptions,
    settings: StreamOptions,
    name: StreamArgument,
    subject: Annotated[
        str | None, typer.Option("--subject", metavar="PATTERN", help="Store this subject from now on.")
    ] = None,
    remove_label: Annotated[
        list[str] | None, typer.Option("--remove-label", metavar="KEY", help="Take a label away; repeatable.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change what is given of a stream's configuration; all else stays.

    With other --replicas the stream is moved while it is in use: to more nodes, or off some. It has that
    number at the end, as `stream info` shows; `stream reassign --cancel` goes back.

    Of a partitioned stream all partitions are changed; more --partitions than there are are added.
    """
    changes = settings.patch() | ({"subject": subject} if subject is not None else {})
    if remove_label:
        changes["labels"] = dict.fromkeys(remove_label) | changes.get("labels", {})
    if not changes:
        raise typer.BadParameter("nothing to change: give at least one option")
    async with connected(nats) as client:
        _show(await client.streams.update(name, **changes), as_json)


async def truncate(
    nats: NatsOptions,
    name: StreamArgument,
    before: Annotated[int, typer.Option("--before", min=0, metavar="OFFSET", help="First offset to keep.")],
    as_json: Json = False,
) -> None:
    """Remove the oldest records for good: all below an offset, at most up to the high watermark."""
    async with connected(nats) as client:
        done = await client.streams.truncate(name, before)
    print_result(done, _truncated(done), as_json)


def _truncated(done: TruncateStreamResponse) -> str:
    begins = f"stream {done.name} now begins at offset {done.log_start_offset}"
    freed = "" if done.freed_bytes is None else f"; {size_text(done.freed_bytes)} freed on its leader's disk"
    later = "" if done.frees_more_at is None else f", more once it begins at {done.frees_more_at}"
    return begins + freed + later


def set_txid(
    nats: NatsOptions,
    name: StreamArgument,
    txid: Annotated[int, typer.Argument(metavar="TXID", help="What the last txid is to be.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Set a stream's last txid: no record of before counts any more, so lower txids are taken again.

    For a publisher's mistake that made all later txids too low, or a jump that --txid-max-step refuses. Stop
    that publisher first: what it stores meanwhile counts. It asks, as readers see that the txids go down.
    """
    if not yes and not typer.confirm(f"Set the last txid of stream {name} to {txid}?", err=True):
        raise typer.Exit(1)
    run_async(_set_txid(nats, name, txid, as_json))


async def _set_txid(nats: NatsOptions, name: str, txid: int, as_json: bool) -> None:
    async with connected(nats) as client:
        done = await client.streams.set_txid(name, txid)
    print_result(done, _txid_text(done), as_json)


def _txid_text(done: SetTxidResponse) -> str:
    text = f"the last txid of stream {done.name} is {done.last_txid} from offset {done.offset} on"
    if done.last_txid == done.txid:
        return text
    return f"{text}, not {done.txid}: a publisher has stored a larger one meanwhile"


def reset_time(
    nats: NatsOptions,
    name: StreamArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Let the times of a stream's next records fall back to its leader's clock, after it was ahead.

    Nothing happens to the records that are stored, nor if the stream's time is not ahead. It asks first: a
    clock that is wrong now would give the next records a wrong time.
    """
    question = f"Let the times of the next records of stream {name} fall back to its leader's clock?"
    if not yes and not typer.confirm(question, err=True):
        raise typer.Exit(1)
    run_async(_reset_time(nats, name, as_json))


async def _reset_time(nats: NatsOptions, name: str, as_json: bool) -> None:
    async with connected(nats) as client:
        done = await client.streams.reset_time(name)
    was_ahead = done.time < done.before
    text = f"was {done.before.isoformat()}" if was_ahead else "is not ahead of its leader's clock"
    print_result(done, f"time of stream {name}: {done.time.isoformat()}, {text}", as_json)


def delete(
    nats: NatsOptions,
    name: StreamArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Delete a stream with every record in it; there is no way back, so it asks first."""
    if not yes and not typer.confirm(f"Delete stream {name} and all its records?", err=True):
        raise typer.Exit(1)
    run_async(_delete(nats, name, as_json))


async def _delete(nats: NatsOptions, name: str, as_json: bool) -> None:
    async with connected(nats) as client:
        done = await client.streams.delete(name)
    if as_json:
        print_json(done)
    else:
        parts = "" if isinstance(done, DeleteStreamResponse) else f" with {len(done.partitions)} partitions"
        print_line(f"deleted stream {name}{parts}")


def _show(stream: StreamInfo | PartitionedStreamInfo, as_json: bool) -> None:
    """Print everything known of a stream."""
    if as_json:
        print_json(stream)
    elif isinstance(stream, StreamInfo):
        _show_one(stream)
    else:
        _show_partitioned(stream)


def _show_partitioned(stream: PartitionedStreamInfo) -> None:
    config = stream.config.model_dump(mode="json", exclude_defaults=True)
    missing = ", ".join(map(str, stream.missing))
    shown: dict[str, object] = {
        "partitions": f"{len(stream.partitions)}, {stream.effective_partitions} of which share the messages",
        "missing": f"{missing}: repeat the command that makes them" if missing else "",
    }
    for key in sorted(config.keys() - {"name", "partitions"}):
        shown[key.replace("_", " ")] = config[key]
    print_properties(stream.config.name, shown)
    _print_summaries("partitions", stream.partitions)


def _show_one(stream: StreamInfo) -> None:
    """Print everything known of one stream, which may be a partition."""
    config = stream.config.model_dump(mode="json", exclude_defaults=True)
    shown: dict[str, object] = {
        "state": stream.state if stream.reason is None else f"{stream.state}: {stream.reason}",
        "subject": stream.config.subject,
        "ack": stream.config.ack,
        "sync": stream.config.sync,
        "offsets": f"{stream.log_start_offset:,} to {stream.log_end_offset:,}",
        "high watermark": stream.high_watermark,
        "size": f"{size_text(stream.bytes)} in {stream.segments} segments",
        "leader": f"{stream.leader or 'none'}, epoch {stream.leader_epoch}",
        "in sync": ", ".join(stream.isr),
        "being moved to": ", ".join(stream.target or ()),
        "read from": ", ".join(stream.read_replicas),
        "message ids": f"{stream.dedupe.ids:,} within {stream.dedupe.effective_window}",
        "sessions": f"{stream.dedupe.sessions:,} within {stream.dedupe.effective_session_window}",
        "created": stream.created_at.isoformat(timespec="seconds"),
    }
    for key in sorted(config.keys() - {"name", "subject", "ack", "sync"}):
        shown[key.replace("_", " ")] = config[key]
    if stream.tier is not None:
        shown["in the object store"] = _tier_text(stream.tier)
    if stream.last_unclean_election is not None:
        shown["last unclean election"] = _unclean_text(stream.last_unclean_election)
    shown["possible gaps"] = "; ".join(_gap_text(gap) for gap in stream.possible_gaps)
    shown["damaged offsets"] = "; ".join(
        f"{range_.start} to {range_.end}" for range_ in stream.corrupt_ranges
    )
    print_properties(stream.config.name, shown)
    columns = ("node", "role", "in sync", "end", "synced", "high watermark", "lag")
    rows = (
        (
            replica.node,
            _role(replica, stream),
            replica.in_sync,
            replica.log_end_offset,
            replica.synced_end,
            replica.high_watermark,
            replica.lag,
        )
        for replica in stream.replica_states
    )
    if stream.replica_states:
        print_table("replicas", columns, rows)


def _tier_text(tier: TierInfo) -> str:
    where = "nothing yet" if tier.end is None else f"{tier.start:,} to {tier.end:,}"
    local = f"; on this disk from {tier.local_start_offset:,} on"
    return where + local + ("" if tier.problem is None else f"; uploads fail: {tier.problem}")


def _role(replica: ReplicaInfo, stream: StreamInfo) -> str:
    if replica.is_read_replica:
        return "read replica"
    return "leader" if replica.node == stream.leader else "follower"


def _unclean_text(election: UncleanElectionInfo) -> str:
    when = "at an unknown time" if election.at is None else election.at.isoformat(timespec="seconds")
    start = "" if election.from_offset is None else f" from offset {election.from_offset:,} on"
    return f"{election.leader}, epoch {election.leader_epoch}, {when}: acked records{start} may be lost"


def _gap_text(gap: PossibleGap) -> str:
    until = "now" if gap.until is None else gap.until.isoformat(timespec="milliseconds")
    return f"{gap.kind} ({gap.count}x) {gap.since.isoformat(timespec='milliseconds')} to {until}"
