"""The numbers of the HTTP port."""

from typing import Final

from jetstream.node.http.metric_sources import Definition, of_node

HTTP_METRICS: Final = (
    of_node(
        "jetstream_http_connections",
        "Peers that are connected to the HTTP port.",
        lambda sources: sources.http.connections,
    ),
    Definition(
        "jetstream_http_connections_total",
        "Connections to the HTTP port: opened, closed, overdue (cut off as too slow).",
        ("event",),
        lambda sources: [
            (("opened",), sources.http.counters.connections_opened),
            (("closed",), sources.http.counters.connections_closed),
            (("overdue",), sources.http.counters.connections_overdue),
        ],
    ),
    of_node(
        "jetstream_http_readers",
        "Responses with records that are under way.",
        lambda sources: sources.http.readers,
    ),
    of_node(
        "jetstream_http_requests_total",
        "Requests to the HTTP port, refused ones included.",
        lambda sources: sources.http.counters.requests,
    ),
    of_node(
        "jetstream_http_protocol_errors_total",
        "Requests that were no HTTP, or larger than a request may be.",
        lambda sources: sources.http.counters.protocol_errors,
    ),
    of_node(
        "jetstream_http_sent_bytes_total",
        "Bytes sent by the HTTP port.",
        lambda sources: sources.http.counters.bytes_sent,
    ),
    of_node(
        "jetstream_http_buffered_bytes",
        "Bytes in memory that wait for peers of the HTTP port to take them.",
        lambda sources: sources.http.buffered_bytes,
    ),
)
"""Part of `jetstream.node.http.metrics.METRICS`."""
