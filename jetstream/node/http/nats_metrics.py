"""The part of a node's numbers that is about its connections to NATS, and what it publishes there itself."""

from collections.abc import Iterator
from typing import Final

from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_link, of_node
from jetstream.node.nats.parser_seam import DropKind


def _dropped(sources: Sources) -> Iterator[Sample]:
    for link in sources.links:
        for kind in DropKind:
            yield (link.watch.role, kind), link.watch.counters.dropped[kind]


NATS_METRICS: Final = (
    of_link(
        "jetstream_nats_connected",
        "1 while messages flow on the connection (ingest: from publishers; answers: acks and requests).",
        lambda link: float(link.connected),
    ),
    of_link(
        "jetstream_nats_reconnects_total",
        "Interruptions of the connection that are over.",
        lambda link: link.watch.counters.reconnects,
    ),
    of_link(
        "jetstream_nats_slow_consumers_total",
        "Times the server said that it drops messages because this node does not keep up.",
        lambda link: link.watch.counters.slow_consumers,
    ),
    of_link(
        "jetstream_nats_errors_total",
        "Errors of the connection, denied permissions included.",
        lambda link: link.watch.counters.errors,
    ),
    of_link(
        "jetstream_nats_subscriptions_refused",
        "Subscriptions that the server refuses, and is asked for again.",
        lambda link: len(link.refused),
    ),
    Definition(
        "jetstream_nats_dropped_total",
        "What publishers sent and the node passed over: subject (a message that its subscription does not "
        "match), reply (no answer can be published on it).",
        ("connection", "kind"),
        _dropped,
    ),
    Definition(
        "jetstream_audit_records_total",
        "Records of changes: stored (acked by the stream `__audit`), dropped (no room, as none was acked).",
        ("outcome",),
        lambda sources: [
            (("stored",), sources.audit.counters.stored),
            (("dropped",), sources.audit.counters.dropped),
        ],
    ),
    of_node(
        "jetstream_audit_records_waiting",
        "Records of changes that this node has not stored yet.",
        lambda sources: sources.audit.waiting,
    ),
)
