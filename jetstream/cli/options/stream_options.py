"""The configuration of a stream as options of ``stream create`` and ``stream update``."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from envelope.types import AckPolicy, Compact, Compression, PartitionBy, SyncMode
from jetstream.cli.options.quantities import parse_duration, parse_label, parse_size

NO_LIMIT: Final = "0: no limit"


def _size(*names: str, text: str) -> Any:  # noqa: ANN401  # typer.Option's own type
    return typer.Option(*names, parser=parse_size, metavar="SIZE", help=text, show_default=False)


def _duration(*names: str, text: str) -> Any:  # noqa: ANN401  # typer.Option's own type
    return typer.Option(*names, parser=parse_duration, metavar="DURATION", help=text, show_default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """What is given is set, all else stays as it is (or at its default for a new stream)."""

    replicas: Annotated[
        int | None, typer.Option("--replicas", min=1, help="Copies of the log, on as many nodes (default 1).")
    ] = None
    min_insync_replicas: Annotated[
        int | None,
        typer.Option(
            "--min-insync-replicas",
            min=1,
            help="Copies that must hold a record before its ack (default: a majority).",
        ),
    ] = None
    ack: Annotated[
        AckPolicy | None, typer.Option("--ack", help="When a publisher is answered (default all).")
    ] = None
    read_replicas: Annotated[
        int | None,
        typer.Option("--read-replicas", min=0, help="More copies that only serve reads (default 0)."),
    ] = None
    unclean_election: Annotated[
        bool | None,
        typer.Option(
            "--unclean-election/--no-unclean-election",
            help="If all in sync are dead, let another replica lead: acked records may be lost (default no).",
            show_default=False,
        ),
    ] = None
    read_only: Annotated[
        bool | None,
        typer.Option(
            "--read-only/--no-read-only",
            help="Refuse messages; what is stored is read, and goes, as ever (default no).",
            show_default=False,
        ),
    ] = None
    sync: Annotated[
        SyncMode | None, typer.Option("--sync", help="When bytes are forced to disk (default always).")
    ] = None
    sync_interval: Annotated[
        timedelta | None, _duration("--sync-interval", text="With --sync interval: how often (default 1s).")
    ] = None
    compression: Annotated[
        Compression | None, typer.Option("--compression", help="Of stored batches (default none).")
    ] = None
    segment_bytes: Annotated[
        int | None, _size("--segment-bytes", text="A segment file is closed at this size (default 256MiB).")
    ] = None
    segment_age: Annotated[
        timedelta | None, _duration("--segment-age", text=f"… and at this age ({NO_LIMIT}).")
    ] = None
    record_bytes_max: Annotated[
        int | None, _size("--record-bytes-max", text="Larger messages are refused (default 64MiB).")
    ] = None
    retention_age: Annotated[
        timedelta | None, _duration("--retention-age", text=f"Old segments go after this time ({NO_LIMIT}).")
    ] = None
    retention_bytes: Annotated[
        int | None, _size("--retention-bytes", text=f"… beyond this size ({NO_LIMIT}).")
    ] = None
    retention_messages: Annotated[
        int | None,
        typer.Option("--retention-messages", min=0, help=f"… beyond this many records ({NO_LIMIT})."),
    ] = None
    tier: Annotated[
        bool | None,
        typer.Option(
            "--tier/--no-tier",
            help="Copy closed segment files to the nodes' object store (default no).",
            show_default=False,
        ),
    ] = None
    local_retention: Annotated[
        timedelta | None,
        _duration("--local-retention", text=f"With --tier: copies leave the disks then ({NO_LIMIT})."),
    ] = None
    local_retention_bytes: Annotated[
        int | None, _size("--local-retention-bytes", text=f"… beyond this size ({NO_LIMIT}).")
    ] = None
    compact: Annotated[
        Compact | None,
        typer.Option("--compact", help="key: keep only the last record of each key (default none)."),
    ] = None
    compact_dirty_ratio: Annotated[
        float | None,
        typer.Option("--compact-dirty-ratio", help="… once so much of it has not been (default 0.5)."),
    ] = None
    compact_age_max: Annotated[
        timedelta | None, _duration("--compact-age-max", text="… and at this age (default 1d).")
    ] = None
    tombstone_retention: Annotated[
        timedelta | None,
        _duration("--tombstone-retention", text="How long tombstones stay after that (default 1d)."),
    ] = None
    rewrite_after: Annotated[
        timedelta | None,
        _duration("--rewrite-after", text="Small batches are merged at this age (default 1h; 0: never)."),
    ] = None
    dedupe_window: Annotated[
        timedelta | None,
        _duration("--dedupe-window", text="How long message ids are remembered (default 2m; 0: not)."),
    ] = None
    dedupe_ids_max: Annotated[
        int | None,
        typer.Option("--dedupe-ids-max", min=1, help="… and how many of them (default 500000)."),
    ] = None
    session_window: Annotated[
        timedelta | None,
        _duration("--session-window", text="A publisher's session is kept so long when idle (default 7d)."),
    ] = None
    group: Annotated[
        str | None, typer.Option("--group", help="Share the subject with the streams of this group.")
    ] = None
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            min=1,
            help="So many streams, NAME/0 and so on, share the messages (default: one).",
        ),
    ] = None
    partition_by: Annotated[
        PartitionBy | None,
        typer.Option("--partition-by", help="… by their key, their subject, or as NATS deals them out."),
    ] = None
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="For people and tools; repeatable."),
    ] = None

    def patch(self) -> dict[str, Any]:
        """Return what is given as keys of a stream's configuration; None removes a limit."""
        given: dict[str, Any] = {
            "replicas": self.replicas,
            "min_insync_replicas": self.min_insync_replicas,
            "read_replicas": self.read_replicas,
            "unclean_election": self.unclean_election,
            "read_only": self.read_only,
            "ack": self.ack,
            "sync": self.sync,
            "sync_interval": self.sync_interval,
            "compression": self.compression,
            "segment_bytes": self.segment_bytes,
            "record_bytes_max": self.record_bytes_max,
            "tier": self.tier,
            "compact": self.compact,
            "compact_dirty_ratio": self.compact_dirty_ratio,
            "compact_age_max": self.compact_age_max,
            "tombstone_retention": self.tombstone_retention,
            "rewrite_after": self.rewrite_after,
            "dedupe_window": self.dedupe_window,
            "dedupe_ids_max": self.dedupe_ids_max,
            "session_window": self.session_window,
            "group": self.group,
            "partitions": self.partitions,
            "partition_by": self.partition_by,
            "labels": dict(parse_label(label) for label in self.labels) if self.labels else None,
        }
        retention = _limits(
            age=self.retention_age, bytes=self.retention_bytes, messages=self.retention_messages
        )
        patch = {name: value for name, value in given.items() if value is not None}
        patch |= _limits(
            segment_age=self.segment_age,
            local_retention=self.local_retention,
            local_retention_bytes=self.local_retention_bytes,
        )
        return patch | ({"retention": retention} if retention else {})


def _limits(**given: timedelta | int | None) -> dict[str, Any]:
    """Keep what is given; zero means no limit, which a configuration writes as None."""
    return {name: value or None for name, value in given.items() if value is not None}
