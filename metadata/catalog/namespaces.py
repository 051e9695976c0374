"""The limits of namespaces: how they are set, and what they refuse.

They are decided where commands are applied, so two nodes that create streams at the same time cannot go
beyond one together. A limit refuses what is new: nothing happens to streams that are there when it is set,
nor to a change that takes no more of the namespace than before.
"""

from dataclasses import dataclass, replace

from envelope.errors import LimitReached
from envelope.namespace_errors import (
    CreationsTooFast,
    NamespaceLimitReached,
    RetentionBytesRequired,
    SubjectNotAllowed,
)
from envelope.types import TimestampUs
from metadata.catalog.commands import LimitNamespace
from metadata.catalog.events import Events, NamespaceLimited, refused
from metadata.catalog.tables import Stream, Tables
from metadata.limits import NAMESPACES_MAX
from metadata.namespaces import NEVER, Namespace, NamespaceTable, is_in
from metadata.stream_config import StreamConfig


def limit_namespace(tables: Tables, command: LimitNamespace) -> Events:
    """Put the changed limits in force; without any the namespace's row goes."""
    name, rows = command.namespace, tables.namespaces.rows
    before = rows.get(name)
    limits = tables.namespaces.limits_of(name).merged(command.changes)
    if before is None and not limits.is_empty and len(rows) >= NAMESPACES_MAX:
        text = f"{NAMESPACES_MAX} namespaces have limits: no more can"
        return refused(LimitReached, text, limit=NAMESPACES_MAX)
    if limits.bytes is not None and (before is None or before.limits.bytes is None):
        refusal = _unbounded_refusal(tables, name)
        if refusal is not None:
            return refusal
    if limits.is_empty:
        rows.pop(name, None)
    else:
        counts = before is not None and limits.creations_per_minute is not None
        rows[name] = Namespace(name, limits, before.paid_until if before is not None and counts else NEVER)
    return (NamespaceLimited(name, limits),)


def _unbounded_refusal(tables: Tables, namespace: str) -> Events | None:
    """Return why the bytes of a namespace cannot be limited: a stream there that keeps any number of them."""
    unbounded = [
        name
        for name, stream in tables.streams.items()
        if stream.config.retention.bytes is None and is_in(name, namespace)
    ]
    if not unbounded:
        return None
    first = min(unbounded)
    others = f", and neither have {len(unbounded) - 1} others" if len(unbounded) > 1 else ""
    return refused(
        RetentionBytesRequired,
        f"bytes: stream {first!r} has no retention.bytes{others}: set it there first",
        stream=first,
        streams=len(unbounded),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The further use of their namespaces by streams of one configuration."""

    config: StreamConfig
    streams: int = 0
    bytes: int = 0
    binds: bool = False
    """The subject is another than before."""


def growth(before: Stream | None, after: Stream) -> Growth:
    """Return the further use by a new or changed stream."""
    config = after.config
    if before is None:
        return Growth(config=config, streams=1, bytes=after.reserved_bytes, binds=True)
    return Growth(
        config=config,
        bytes=after.reserved_bytes - before.reserved_bytes,
        binds=config.subject != before.config.subject,
    )


def beyond_limits(namespaces: NamespaceTable, grown: Growth) -> Events | None:
    """Return why a namespace cannot take so much more, None if all of them can; O(their number)."""
    for row in namespaces.limiting(grown.config.name):
        refusal = _refusal_of(row, namespaces, grown)
        if refusal is not None:
            return refusal
    return None


def _refusal_of(row: Namespace, namespaces: NamespaceTable, grown: Growth) -> Events | None:
    limits, use, config = row.limits, namespaces.uses.of(row.name), grown.config
    if grown.binds and not limits.allows_subject(config.subject):
        return refused(
            SubjectNotAllowed,
            f"subject: {config.subject!r} lies within no pattern that streams of {_called(row)} may bind",
            namespace=row.name,
            field="subject",
        )
    if limits.streams is not None and grown.streams > max(0, limits.streams - use.streams):
        return _reached(row, "streams", grown.streams, use.streams, limits.streams)
    if limits.bytes is None:
        return None
    if config.retention.bytes is None:
        return refused(
            RetentionBytesRequired,
            f"retention.bytes: is required, as the bytes of {_called(row)} are limited",
            namespace=row.name,
            field="retention.bytes",
        )
    if grown.bytes > max(0, limits.bytes - use.bytes):
        return _reached(row, "bytes", grown.bytes, use.bytes, limits.bytes)
    return None


def _reached(row: Namespace, what: str, more: int, used: int, limit: int) -> Events:
    return refused(
        NamespaceLimitReached,
        f"{what}: {more} more are wanted, {used} are taken in {_called(row)}, the limit is {limit}",
        namespace=row.name,
        field=what,
        more=more,
        used=used,
        limit=limit,
    )


def _called(row: Namespace) -> str:
    return f"namespace {row.name!r}" if row.name else "the cluster"


def creation_beyond_rate(
    namespaces: NamespaceTable, stream: str, created: TimestampUs, creations: int = 1
) -> Events | None:
    """Return why so many streams may not be created at that time of a command, None if they may."""
    waits = [(row.wait_us(created, creations), row) for row in namespaces.limiting(stream)]
    wait_us, row = max(waits, key=lambda wait: wait[0], default=(0, None))
    if row is None or wait_us == 0:
        return None
    wait_ms = -(-wait_us // 1_000)
    return refused(
        CreationsTooFast,
        f"{row.limits.creations_per_minute} streams may be created in a minute in {_called(row)}: "
        f"wait {wait_ms / 1_000:g} s",
        namespace=row.name,
        retry_after_ms=wait_ms,
    )


def count_creation(namespaces: NamespaceTable, stream: str, created: TimestampUs) -> None:
    """Count a stream that was created where the rate is limited."""
    for row in namespaces.limiting(stream):
        if row.limits.creations_per_minute is not None:
            namespaces.rows[row.name] = replace(row, paid_until=row.paid_after(created))
