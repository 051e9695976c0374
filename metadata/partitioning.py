"""Partitioned streams as a whole: their configuration, the partitions that follow from it, and those missing.

A partition has the configuration of its stream, and its number and the count of partitions besides.
Partitions that were added later have a larger count.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from envelope.errors import InvalidConfig, JetstreamError, StreamExists
from envelope.partition_errors import StreamIsPartition, StreamIsPartitioned
from envelope.subjects import matches
from envelope.types import StreamName
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import CreateStream
from metadata.catalog.events import CommandRefused, Events
from metadata.catalog.holders import wanted_replicas
from metadata.catalog.namespaces import Growth, beyond_limits, creation_beyond_rate, growth
from metadata.catalog.tables import Stream
from metadata.namespaces import reserved_bytes
from metadata.stream_config import StreamConfig, partition_name
from metadata.stream_patch import StreamPatch, patched, with_default_replicas

OF_THE_WHOLE: Final = frozenset(("name", "partitions", "partition_by", "partition_of", "partition"))
"""Fields of a change that name its stream, and are no change of its partitions."""
OF_ALL_PARTITIONS: Final = frozenset(("subject", "group"))
"""Fields that a partition has in common with the others, always."""


def partition_config(whole: StreamConfig, number: int, partitions: int) -> StreamConfig:
    """Return the configuration of one of so many partitions."""
    name = partition_name(whole.name, number)
    own = {"name": name, "partitions": partitions, "partition_of": whole.name, "partition": number}
    return StreamConfig.model_validate(whole.settings() | own)


def whole_config(rows: Sequence[Stream]) -> StreamConfig:
    """Return the configuration of the stream whose partitions these are, by number: that of the first.

    Its ``partitions`` is the configured number, whether or not all exist.
    """
    assert rows, "a partitioned stream is its partitions"
    config = rows[0].config
    own = {"name": config.partition_of, "partitions": wanted(rows), "partition_of": None, "partition": None}
    return StreamConfig.model_validate(config.settings() | own)


def wanted(rows: Sequence[Stream]) -> int:
    """Return the configured number of partitions."""
    return max(row.config.partitions or 0 for row in rows)


def missing(rows: Sequence[Stream], partitions: int) -> list[int]:
    """Return the numbers of the partitions that are not there, ascending."""
    present = {row.config.partition for row in rows}
    return [number for number in range(partitions) if number not in present]


def to_create(whole: StreamConfig, catalog: Catalog, *, any_replicas: bool = False) -> list[StreamConfig]:
    """Return the configurations of the partitions to create; none if all are there as requested.

    ``any_replicas``: those that there are may have other numbers of replicas, each another, too, as while
    they are being moved.

    Raises:
        StreamExists: a name is taken, or the stream is there with another configuration.
    """
    assert whole.partitions is not None, "an ordinary stream has no partitions"
    if catalog.stream(StreamName(whole.name)) is not None:
        raise StreamExists(f"stream {whole.name!r} exists and is not partitioned", fields="partitions")
    rows = catalog.partition_rows(whole.name)
    if rows:
        found = [whole_config((row,)) for row in rows]
        differing = {name for config in found for name in whole.differing(config) if name != "partitions"}
        if any_replicas:
            differing.discard("replicas")
        if wanted(rows) != whole.partitions:
            differing.add("partitions")
        if differing:
            fields = ", ".join(name for name in StreamConfig.model_fields if name in differing)
            raise StreamExists(f"stream {whole.name!r} exists with another {fields}", fields=fields)
    return partitions_to_add(whole, catalog)


def partitions_to_add(whole: StreamConfig, catalog: Catalog) -> list[StreamConfig]:
    """Return the configurations of the partitions that do not exist yet.

    Raises:
        StreamExists: a stream that is none of them has such a name.
    """
    assert whole.partitions is not None, "an ordinary stream has no partitions"
    numbers = missing(catalog.partition_rows(whole.name), whole.partitions)
    for number in numbers:
        name = partition_name(whole.name, number)
        if catalog.stream(name) is not None or catalog.partition_rows(name):
            raise StreamExists(f"stream {name!r} exists and is no partition of {whole.name!r}", stream=name)
    return [partition_config(whole, number, whole.partitions) for number in numbers]


def refuse_beyond_limits(creations: Sequence[CreateStream], catalog: Catalog) -> None:
    """Raise the refusal of partitions of one stream that all together are more than a namespace may have.

    Each of them is held to the limits when it is created; but then some would be there, and others not.

    Raises:
        JetstreamError: as one of the creations would be refused.
    """
    if not creations:
        return
    first, count = creations[0], len(creations)
    reserved = sum(reserved_bytes(creation.config, creation.config.replicas) for creation in creations)
    _raise(
        beyond_limits(
            catalog.namespaces, Growth(config=first.config, streams=count, bytes=reserved, binds=True)
        )
        or creation_beyond_rate(catalog.namespaces, first.config.name, first.created, count)
    )


def refuse_changes_beyond_limits(rows: Sequence[Stream], patch: StreamPatch, catalog: Catalog) -> None:
    """Raise the refusal of a change of all partitions by which they would reserve too much together.

    Raises:
        JetstreamError: as the change of one of them would be refused.
    """
    try:
        changed = [replace(row, config=patched(row.config, patch)) for row in rows]
    except (JetstreamError, ValidationError):
        return  # no change at all: so it is refused when it is made
    patch = with_default_replicas(patch, catalog.cluster.default_replicas)
    wanted = [wanted_replicas(row, patch) for row in rows]
    reserved = sum(
        max(after.reserved_bytes, reserved_bytes(after.config, replicas or 0)) - row.reserved_bytes
        for row, after, replicas in zip(rows, changed, wanted, strict=True)
    )
    _raise(beyond_limits(catalog.namespaces, replace(growth(rows[0], changed[0]), bytes=reserved)))


def _raise(refusal: Events | None) -> None:
    if refusal is not None and isinstance(refusal[0], CommandRefused):
        raise refusal[0].exception()


def updated_partitions(patch: StreamPatch, whole: StreamConfig) -> int:
    """Return the number of partitions after a change of a partitioned stream.

    Raises:
        InvalidConfig: fewer than there are, or the change would make it something else.
    """
    for field in ("partition_by", "partition_of", "partition"):
        if field in patch.model_fields_set and getattr(patch, field) != getattr(whole, field):
            raise InvalidConfig(f"{field}: cannot be changed", field=field)
    if "partitions" not in patch.model_fields_set:
        assert whole.partitions is not None, "it is partitioned"
        return whole.partitions
    if patch.partitions is None or patch.partitions < (whole.partitions or 0):
        raise InvalidConfig(
            f"partitions: {whole.name!r} has {whole.partitions}, and partitions are only added",
            field="partitions",
        )
    return patch.partitions


def refuse_lone_change(row: Stream, patch: StreamPatch) -> None:
    """Raise StreamIsPartition if one partition is to differ in what all have in common."""
    config = row.config
    for field in OF_ALL_PARTITIONS & patch.model_fields_set:
        if config.partition_of is not None and getattr(patch, field) != getattr(config, field):
            raise is_partition(row, f"{field}: is changed of all partitions together", field=field)


def is_partition(row: Stream, reason: str, **detail: str) -> StreamIsPartition:
    """Return the refusal of a request for one partition that is possible for the whole stream only."""
    whole = row.config.partition_of or ""
    return StreamIsPartition(
        f"{reason}: {row.name!r} is a partition of {whole!r}", partition_of=whole, **detail
    )


def binds(catalog: Catalog, name: str, subject: str) -> bool:
    """Return whether a stream of that name, partitioned or not, takes messages on a subject."""
    is_whole = catalog.partitions_of(name) > 0
    stream = catalog.stream(partition_name(name, 0) if is_whole else StreamName(name))
    return stream is not None and matches(stream.config.subject, subject)


def is_partitioned(name: str, catalog: Catalog) -> StreamIsPartitioned:
    """Return the refusal of a request for a partitioned stream that is possible for its partitions only."""
    names = [row.name for row in catalog.partition_rows(name)]
    listed = " … ".join([*names[:1], *names[1:][-1:]])
    return StreamIsPartitioned(f"stream {name!r} is partitioned: ask {listed}", partitions=len(names))
