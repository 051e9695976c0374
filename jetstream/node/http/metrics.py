"""A node's numbers for Prometheus: what there is, what it means, and where it is read when somebody asks.

The hot path counts in plain integers of its own; a scrape reads them. docs/metrics.md is made of this table.
"""

from collections.abc import Iterator
from typing import Final

from jetstream.ingest.machine import CountKind
from jetstream.node.http.door_metrics import TURNED_AWAY
from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_streams, one
from jetstream.node.http.nats_metrics import NATS_METRICS
from jetstream.node.http.replica_metrics import REPLICA_METRICS
from jetstream.node.maintenance.repair import REPAIRED
from jetstream.node.replicas.lost_records import COMMITTED_LOST
from jetstream.node.replicas.replica import StreamReplica

_OUTCOMES: Final = sorted((*CountKind, "acks_dropped"))


def _online(sources: Sources) -> Iterator[Sample]:
    ailing = {name for name, _ in sources.streams.problems()}
    for name in sources.streams.names():
        yield (name,), float(name not in ailing)


def _messages(sources: Sources) -> Iterator[Sample]:
    for stream in sources.streams:
        for outcome in _OUTCOMES:
            yield (stream.name, outcome), stream.parts.counts[outcome]


def _corrupt(stream: StreamReplica) -> int:
    return sum(end - start for start, end in stream.log.reader.corrupt_ranges)


_STREAM: Final = ("stream",)

METRICS: Final = (
    Definition(
        "jetstream_node_info",
        "gauge",
        "Always 1; the labels say which node and version this is.",
        ("node", "version"),
        lambda sources: [((sources.node, sources.version), 1.0)],
    ),
    Definition(
        "jetstream_stream_online",
        "gauge",
        "1 if the stream takes and serves records here, 0 if it is offline or NATS refuses its subject.",
        _STREAM,
        _online,
    ),
    Definition(
        "jetstream_stream_log_start_offset",
        "gauge",
        "First offset that is kept.",
        _STREAM,
        of_streams(lambda stream: stream.readable.log_start_offset),
    ),
    Definition(
        "jetstream_stream_log_end_offset",
        "gauge",
        "Offset of the next record; its rate is the rate of records stored.",
        _STREAM,
        of_streams(lambda stream: stream.log.log_end_offset),
    ),
    Definition(
        "jetstream_stream_high_watermark",
        "gauge",
        "First offset that is not committed; its rate is the rate of records that readers can see.",
        _STREAM,
        of_streams(lambda stream: stream.high_watermark),
    ),
    Definition(
        "jetstream_stream_bytes",
        "gauge",
        "Bytes of the stream's segment files.",
        _STREAM,
        of_streams(lambda stream: stream.log.reader.size),
    ),
    Definition(
        "jetstream_stream_segments",
        "gauge",
        "Segment files of the stream.",
        _STREAM,
        of_streams(lambda stream: len(stream.log.reader.segments)),
    ),
    Definition(
        "jetstream_stream_compacted_offset",
        "gauge",
        "Below it the stream is compacted: no record is left that a later one below it replaces.",
        _STREAM,
        of_streams(lambda stream: stream.log.compaction.cleaned_end),
    ),
    Definition(
        "jetstream_stream_purged_offset",
        "gauge",
        "Below it compaction may have removed tombstones.",
        _STREAM,
        of_streams(lambda stream: stream.log.compaction.purged_end),
    ),
    Definition(
        "jetstream_stream_rewritten_offset",
        "gauge",
        "Below it the sealed rewrite has merged small batches where that pays.",
        _STREAM,
        of_streams(lambda stream: stream.log.rewritten_end),
    ),
    Definition(
        "jetstream_stream_tiered_offset",
        "gauge",
        "Below it the stream is in the object store, read back and verified; 0: nothing is.",
        _STREAM,
        of_streams(lambda stream: stream.tiered.mark.end if stream.tiered.mark is not None else 0),
    ),
    Definition(
        "jetstream_stream_tier_failing",
        "gauge",
        "1 if this node leads the stream and its uploads fail, or wait: `tier.problem` in its info says why.",
        _STREAM,
        of_streams(lambda stream: float(stream.tiered.problem is not None)),
    ),
    Definition(
        "jetstream_stream_waiting_messages",
        "gauge",
        "Messages received and not yet sequenced; messages beyond the limit are refused as overloaded.",
        _STREAM,
        of_streams(lambda stream: stream.leading.path.waiting if stream.leading else 0),
    ),
    Definition(
        "jetstream_stream_pending_acks",
        "gauge",
        "Publishers that wait for their record to be committed.",
        _STREAM,
        of_streams(lambda stream: stream.leading.path.pending_acks if stream.leading else 0),
    ),
    Definition(
        "jetstream_stream_message_ids",
        "gauge",
        "Message ids that are remembered to recognise repeats.",
        _STREAM,
        of_streams(lambda stream: len(stream.parts.opened.history.dedupe)),
    ),
    Definition(
        "jetstream_stream_possible_gaps_total",
        "counter",
        "Times in which NATS may have delivered messages of the stream to nobody, since the node started.",
        _STREAM,
        of_streams(lambda stream: stream.parts.gaps.total),
    ),
    Definition(
        "jetstream_stream_unclean_elections_total",
        "counter",
        "Reigns that this node has begun without having been in sync, since it started: each may have lost "
        "committed records.",
        _STREAM,
        of_streams(lambda stream: stream.parts.counts["unclean_elections"]),
    ),
    Definition(
        "jetstream_stream_committed_records_lost_total",
        "counter",
        "Records that were, or may have been, committed and that this node has cut off since it started, "
        "because the leader does not have them.",
        _STREAM,
        of_streams(lambda stream: stream.parts.counts[COMMITTED_LOST]),
    ),
    Definition(
        "jetstream_stream_corrupt_offsets",
        "gauge",
        "Offsets that are refused to readers because their bytes are damaged or missing.",
        _STREAM,
        of_streams(_corrupt),
    ),
    Definition(
        "jetstream_stream_repaired_offsets_total",
        "counter",
        "Offsets whose bytes were damaged, and were put back from another replica, since the node started.",
        _STREAM,
        of_streams(lambda stream: stream.parts.counts[REPAIRED]),
    ),
    Definition(
        "jetstream_stream_messages_total",
        "counter",
        "Messages that were not simply stored and acked, by outcome: refused, dropped_without_reply, "
        "duplicates, unknown_outcome; and acks_dropped, whose publisher heard nothing of a stored record.",
        ("stream", "outcome"),
        _messages,
    ),
    Definition(
        "jetstream_compaction_passes_total",
        "counter",
        "Compactions of a stream that came to their end.",
        (),
        one(lambda sources: sources.compaction.passes),
    ),
    Definition(
        "jetstream_compaction_failed_passes_total",
        "counter",
        "Compactions that the disk or damaged data has stopped.",
        (),
        one(lambda sources: sources.compaction.failures),
    ),
    Definition(
        "jetstream_compaction_segments_total",
        "counter",
        "Segments that compaction has rewritten.",
        (),
        one(lambda sources: sources.compaction.segments),
    ),
    Definition(
        "jetstream_compaction_records_total",
        "counter",
        "Records that compaction has removed.",
        (),
        one(lambda sources: sources.compaction.records),
    ),
    Definition(
        "jetstream_compaction_read_bytes_total",
        "counter",
        "Bytes that compaction has read, each time it did.",
        (),
        one(lambda sources: sources.compaction.read_bytes),
    ),
    Definition(
        "jetstream_compaction_freed_bytes_total",
        "counter",
        "Bytes by which compaction has made segments smaller.",
        (),
        one(lambda sources: sources.compaction.freed_bytes),
    ),
    Definition(
        "jetstream_rewrite_segments_total",
        "counter",
        "Segments whose small batches the sealed rewrite has merged.",
        (),
        one(lambda sources: sources.rewrite.segments),
    ),
    Definition(
        "jetstream_rewrite_failures_total",
        "counter",
        "Sealed rewrites that the disk or damaged data has stopped.",
        (),
        one(lambda sources: sources.rewrite.failures),
    ),
    Definition(
        "jetstream_rewrite_replaced_bytes_total",
        "counter",
        "Bytes of the segments that the sealed rewrite has replaced.",
        (),
        one(lambda sources: sources.rewrite.replaced_bytes),
    ),
    Definition(
        "jetstream_rewrite_freed_bytes_total",
        "counter",
        "Bytes by which the sealed rewrite has made segments smaller.",
        (),
        one(lambda sources: sources.rewrite.freed_bytes),
    ),
    Definition(
        "jetstream_scrub_segments_total",
        "counter",
        "Sealed segments that were read again, and found to be good.",
        (),
        one(lambda sources: sources.scrub.segments),
    ),
    Definition(
        "jetstream_scrub_failures_total",
        "counter",
        "Sealed segments that were read again, and are damaged, or that the disk refused to read.",
        (),
        one(lambda sources: sources.scrub.failures),
    ),
    Definition(
        "jetstream_scrub_read_bytes_total",
        "counter",
        "Bytes that were read again to look for damage.",
        (),
        one(lambda sources: sources.scrub.read_bytes),
    ),
    Definition(
        "jetstream_tier_objects_total",
        "counter",
        "Segments uploaded (read back and verified) and downloaded for readers, attempts at either that "
        "failed, and objects deleted because nothing names them any more.",
        ("event",),
        lambda sources: [((event,), count) for event, count in sources.tier.counters.objects.items()],
    ),
    Definition(
        "jetstream_tier_bytes_total",
        "counter",
        "Bytes of the segments that were uploaded and downloaded.",
        ("event",),
        lambda sources: [((event,), count) for event, count in sources.tier.counters.bytes.items()],
    ),
    Definition(
        "jetstream_tier_cached_bytes",
        "gauge",
        "Bytes that were downloaded and are still on this node's disk.",
        (),
        one(lambda sources: sources.tier.held_bytes),
    ),
    Definition(
        "jetstream_cursors",
        "gauge",
        "Cursors of consumers that this node can tell: all, where it leads their stream, otherwise 0.",
        (),
        one(lambda sources: sources.cursors.cursors),
    ),
    Definition(
        "jetstream_groups",
        "gauge",
        "Consumer groups that this node coordinates.",
        (),
        one(lambda sources: sources.groups.census.groups),
    ),
    Definition(
        "jetstream_group_members",
        "gauge",
        "Members of the consumer groups that this node coordinates.",
        (),
        one(lambda sources: sources.groups.census.members),
    ),
    Definition(
        "jetstream_group_cursors",
        "gauge",
        "Cursors of the consumer groups that this node coordinates.",
        (),
        one(lambda sources: sources.groups.census.cursors),
    ),
    Definition(
        "jetstream_cursors_unreadable",
        "gauge",
        "Cursors stored in a format that this version does not know; who asks for one is refused.",
        (),
        one(lambda sources: sources.cursors.unreadable),
    ),
    Definition(
        "jetstream_disk_commits_total",
        "counter",
        "Times that groups were written and, where asked, synced together.",
        (),
        one(lambda sources: sources.disk.commits),
    ),
    Definition(
        "jetstream_disk_groups_total",
        "counter",
        "Groups of messages written; over commits it says how many streams were written together.",
        (),
        one(lambda sources: sources.disk.groups),
    ),
    Definition(
        "jetstream_disk_records_total",
        "counter",
        "Records written; over groups it says how many messages shared a write and a sync.",
        (),
        one(lambda sources: sources.disk.records),
    ),
    Definition(
        "jetstream_disk_write_seconds_total",
        "counter",
        "Seconds spent writing groups, on the disk thread and, in short commits, on the event loop.",
        (),
        one(lambda sources: sources.disk.write_seconds),
    ),
    Definition(
        "jetstream_disk_sync_seconds_total",
        "counter",
        "Seconds spent syncing groups, likewise.",
        (),
        one(lambda sources: sources.disk.sync_seconds),
    ),
    Definition(
        "jetstream_disk_failed_groups_total",
        "counter",
        "Groups that were refused, or whose outcome is unknown.",
        (),
        one(lambda sources: sources.disk.failed_groups),
    ),
    *NATS_METRICS,
    Definition(
        "jetstream_socket_connections",
        "gauge",
        "Readers that are connected.",
        (),
        one(lambda sources: sources.server.connections),
    ),
    TURNED_AWAY,
    Definition(
        "jetstream_socket_parked_fetches",
        "gauge",
        "Fetches that wait for records.",
        (),
        one(lambda sources: sources.server.parked),
    ),
    Definition(
        "jetstream_socket_buffered_bytes",
        "gauge",
        "Bytes in memory that wait for readers to take them; what is sent from files is not among them.",
        (),
        one(lambda sources: sources.server.buffered_bytes),
    ),
    Definition(
        "jetstream_socket_connections_total",
        "counter",
        "Connections of readers: opened, refused (too many), unauthorized (no or a wrong token), closed, "
        "overdue (cut off as too slow).",
        ("event",),
        lambda sources: [
            (("opened",), sources.server.counters.connections_opened),
            (("refused",), sources.server.door.refused),
            (("unauthorized",), sources.server.counters.connections_unauthorized),
            (("closed",), sources.server.counters.connections_closed),
            (("overdue",), sources.server.counters.connections_overdue),
        ],
    ),
    Definition(
        "jetstream_socket_requests_total",
        "counter",
        "Requests of readers.",
        (),
        one(lambda sources: sources.server.counters.requests),
    ),
    Definition(
        "jetstream_socket_failed_requests_total",
        "counter",
        "Requests of readers that were answered with an error.",
        (),
        one(lambda sources: sources.server.counters.requests_failed),
    ),
    Definition(
        "jetstream_socket_protocol_errors_total",
        "counter",
        "Connections closed because the peer broke the protocol, that of TLS included.",
        (),
        one(lambda sources: sources.server.counters.protocol_errors),
    ),
    Definition(
        "jetstream_socket_sent_bytes_total",
        "counter",
        "Bytes sent to readers.",
        (),
        one(lambda sources: sources.server.counters.bytes_sent),
    ),
    Definition(
        "jetstream_socket_short_circuit_bytes_total",
        "counter",
        "Bytes that readers on this machine were told to read from the files themselves.",
        (),
        one(lambda sources: sources.server.counters.short_circuit_bytes),
    ),
    Definition(
        "jetstream_socket_awaited_turns_total",
        "counter",
        "Times that a reader that catches up waited for its turn, because something was stored.",
        (),
        one(lambda sources: sources.server.turns_awaited),
    ),
    Definition(
        "jetstream_socket_verified_ranges_total",
        "counter",
        "Ranges whose checksums were computed before they were served, because another process wrote them.",
        (),
        one(lambda sources: sources.server.counters.ranges_verified),
    ),
    Definition(
        "jetstream_socket_warmed_ranges_total",
        "counter",
        "Ranges that a thread read into memory before they were sent.",
        (),
        one(lambda sources: sources.server.counters.ranges_warmed),
    ),
    *REPLICA_METRICS,
)
"""Every metric of a node; beside them stand those of its process (``process_…``)."""
