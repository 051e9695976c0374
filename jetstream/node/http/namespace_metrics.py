"""The numbers of namespaces that have limits: every node shows the whole cluster's, as far as it knows."""

from collections.abc import Callable, Iterator
from typing import Final

from jetstream.node.http.metric_sources import Definition, Sample, Sources
from metadata.namespaces import NamespaceLimits, NamespaceUse

_NAMESPACE: Final = ("namespace",)


def _of_use(name: str, help_text: str, value: Callable[[NamespaceUse], int]) -> Definition:
    def read(sources: Sources) -> Iterator[Sample]:
        namespaces = sources.streams.catalog.namespaces
        for row in namespaces.limited():
            yield (row.name,), value(namespaces.uses.of(row.name))

    return Definition(name, help_text, _NAMESPACE, read)


def _of_limit(name: str, help_text: str, value: Callable[[NamespaceLimits], int | None]) -> Definition:
    def read(sources: Sources) -> Iterator[Sample]:
        for row in sources.streams.catalog.namespaces.limited():
            limit = value(row.limits)
            if limit is not None:
                yield (row.name,), limit

    return Definition(name, help_text, _NAMESPACE, read)


NAMESPACE_METRICS: Final = (
    _of_use(
        "jetstream_namespace_streams",
        "Streams and partitions of a namespace that has limits; the empty one is that of all streams.",
        lambda use: use.streams,
    ),
    _of_limit(
        "jetstream_namespace_streams_limit",
        "Streams and partitions that the namespace may have.",
        lambda limits: limits.streams,
    ),
    _of_use(
        "jetstream_namespace_reserved_bytes",
        "Bytes that the streams of the namespace reserve, in all their copies.",
        lambda use: use.bytes,
    ),
    _of_limit(
        "jetstream_namespace_bytes_limit",
        "Bytes that the streams of the namespace may reserve.",
        lambda limits: limits.bytes,
    ),
    _of_limit(
        "jetstream_namespace_creations_per_minute_limit",
        "Streams and partitions that may be created in a minute in the namespace.",
        lambda limits: limits.creations_per_minute,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
