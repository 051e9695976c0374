"""The part of a node's numbers that is about its connections to NATS."""

from collections.abc import Iterator
from typing import Final

from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_links
from jetstream.node.nats.parser_seam import DropKind

_LINK: Final = ("connection",)


def _dropped(sources: Sources) -> Iterator[Sample]:
    for link in sources.links:
        for kind in DropKind:
            yield (link.watch.role, kind), link.watch.counters.dropped[kind]


NATS_METRICS: Final = (
    Definition(
        "jetstream_nats_connected",
        "gauge",
        "1 while messages flow on the connection (ingest: from publishers; answers: acks and requests).",
        _LINK,
        of_links(lambda link: float(link.connected)),
    ),
    Definition(
        "jetstream_nats_reconnects_total",
        "counter",
        "Interruptions of the connection that are over.",
        _LINK,
        of_links(lambda link: link.watch.counters.reconnects),
    ),
    Definition(
        "jetstream_nats_slow_consumers_total",
        "counter",
        "Times the server said that it drops messages because this node does not keep up.",
        _LINK,
        of_links(lambda link: link.watch.counters.slow_consumers),
    ),
    Definition(
        "jetstream_nats_errors_total",
        "counter",
        "Errors of the connection, denied permissions included.",
        _LINK,
        of_links(lambda link: link.watch.counters.errors),
    ),
    Definition(
        "jetstream_nats_subscriptions_refused",
        "gauge",
        "Subscriptions that the server refuses, and is asked for again.",
        _LINK,
        of_links(lambda link: len(link.refused)),
    ),
    Definition(
        "jetstream_nats_dropped_total",
        "counter",
        "What publishers sent and the node passed over: subject (a message that its subscription does not "
        "match), reply (no answer can be published on it).",
        ("connection", "kind"),
        _dropped,
    ),
)
