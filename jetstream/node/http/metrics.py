"""A node's numbers for Prometheus: what there is, what it means, and where it is read when somebody asks.

The hot path counts in plain integers of its own; a scrape reads them. docs/metrics.md is made of this table.
"""

from collections.abc import Iterator
from typing import Final

from envelope.errors import StorageError
from jetstream.ingest.machine import CountKind
from jetstream.node.http.group_metrics import GROUP_METRICS
from jetstream.node.http.http_metrics import HTTP_METRICS
from jetstream.node.http.metric_sources import Definition, Sample, Sources, of_node, of_stream
from jetstream.node.http.namespace_metrics import NAMESPACE_METRICS
from jetstream.node.http.nats_metrics import NATS_METRICS
from jetstream.node.http.replica_metrics import REPLICA_METRICS
from jetstream.node.http.voter_metrics import VOTER_METRICS
from jetstream.node.maintenance.repair import REPAIRED
from jetstream.node.maintenance.stream_times import AHEAD_HELP, time_ahead_us
from jetstream.node.replicas.lost_records import COMMITTED_LOST
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.runtime.version import VERSION

_OUTCOMES: Final = sorted((*CountKind, "acks_dropped"))


def _online(sources: Sources) -> Iterator[Sample]:
    ailing = {name for name, _ in sources.streams.problems()}
    for name in sources.streams.names():
        yield (name,), float(name not in ailing)


def _messages(sources: Sources) -> Iterator[Sample]:
    for stream in sources.streams:
        for outcome in _OUTCOMES:
            yield (stream.name, outcome), stream.context.counts[outcome]


def _times_ahead(sources: Sources) -> Iterator[Sample]:
    now = sources.removal_clock.clock.wall()
    for stream in sources.streams:
        yield (stream.name,), time_ahead_us(stream, now) / 1e6


def _free_bytes(sources: Sources) -> Iterator[Sample]:
    try:
        yield (), sources.streams.files.disk.free_bytes()
    except StorageError:
        return  # the disk does not say; a page without this number is better than none


def _corrupt(stream: StreamReplica) -> int:
    return sum(end - start for start, end in stream.log.reader.corrupt_ranges)


def _turned_away(sources: Sources) -> Iterator[Sample]:
    for door in sources.doors:
        yield (door.port, "refused"), door.refused
        yield (door.port, "displaced"), door.displaced


_STREAM: Final = ("stream",)

METRICS: Final = (
    Definition(
        "jetstream_node_info",
        "Always 1; the labels say which node and version this is.",
        ("node", "version"),
        lambda sources: [((sources.node, VERSION), 1.0)],
    ),
    of_node(
        "jetstream_log_lines_dropped_total",
        "Lines of the node's log that were not written, because nobody read its standard error.",
        lambda sources: sources.lines_dropped(),
    ),
    Definition(
        "jetstream_stream_online",
        "1 if the stream takes and serves records here, 0 if it is offline or NATS refuses its subject.",
        _STREAM,
        _online,
    ),
    of_stream(
        "jetstream_stream_log_start_offset",
        "First offset that is kept.",
        lambda stream: stream.readable.log_start_offset,
    ),
    of_stream(
        "jetstream_stream_log_end_offset",
        "Offset of the next record; its rate is the rate of records stored.",
        lambda stream: stream.log.log_end_offset,
    ),
    of_stream(
        "jetstream_stream_high_watermark",
        "First offset that is not committed; its rate is the rate of records that readers can see.",
        lambda stream: stream.high_watermark,
    ),
    Definition("jetstream_stream_time_ahead_seconds", AHEAD_HELP, _STREAM, _times_ahead),
    of_node(
        "jetstream_retention_held_back_seconds",
        "Seconds by which the clock has just jumped ahead, while nothing is removed by it yet; otherwise 0.",
        lambda sources: sources.removal_clock.ahead_us / 1e6,
    ),
    of_stream(
        "jetstream_stream_bytes",
        "Bytes of the stream's segment files.",
        lambda stream: stream.log.reader.size,
    ),
    of_stream(
        "jetstream_stream_segments",
        "Segment files of the stream.",
        lambda stream: len(stream.log.reader.segments),
    ),
    of_stream(
        "jetstream_stream_compacted_offset",
        "Below it the stream is compacted: no record is left that a later one below it replaces.",
        lambda stream: stream.log.compaction.cleaned_end,
    ),
    of_stream(
        "jetstream_stream_purged_offset",
        "Below it compaction may have removed tombstones.",
        lambda stream: stream.log.compaction.purged_end,
    ),
    of_stream(
        "jetstream_stream_rewritten_offset",
        "Below it the sealed rewrite has merged small batches where that pays.",
        lambda stream: stream.log.rewritten_end,
    ),
    of_stream(
        "jetstream_stream_tiered_offset",
        "Below it the stream is in the object store, read back and verified; 0: nothing is.",
        lambda stream: stream.tiered.mark.end if stream.tiered.mark is not None else 0,
    ),
    of_stream(
        "jetstream_stream_tier_failing",
        "1 if this node leads the stream and its uploads fail, or wait: `tier.problem` in its info says why.",
        lambda stream: float(stream.tiered.problem is not None),
    ),
    of_stream(
        "jetstream_stream_waiting_messages",
        "Messages received and not yet sequenced; messages beyond the limit are refused as overloaded.",
        lambda stream: stream.leading.path.waiting if stream.leading else 0,
    ),
    of_stream(
        "jetstream_stream_pending_acks",
        "Publishers that wait for their record to be committed.",
        lambda stream: stream.leading.path.pending_acks if stream.leading else 0,
    ),
    of_stream(
        "jetstream_stream_message_ids",
        "Message ids that are remembered to recognise repeats.",
        lambda stream: len(stream.context.opened.history.dedupe),
    ),
    of_stream(
        "jetstream_stream_possible_gaps_total",
        "Times in which NATS may have delivered messages of the stream to nobody, since the node started.",
        lambda stream: stream.context.gaps.total,
    ),
    of_stream(
        "jetstream_stream_unclean_elections_total",
        "Reigns that this node has begun without having been in sync, since it started: each may have lost "
        "committed records.",
        lambda stream: stream.context.counts["unclean_elections"],
    ),
    of_stream(
        "jetstream_stream_committed_records_lost_total",
        "Records that were, or may have been, committed and that this node has cut off since it started, "
        "because the leader does not have them.",
        lambda stream: stream.context.counts[COMMITTED_LOST],
    ),
    of_stream(
        "jetstream_stream_corrupt_offsets",
        "Offsets that are refused to readers because their bytes are damaged or missing.",
        _corrupt,
    ),
    of_stream(
        "jetstream_stream_repaired_offsets_total",
        "Offsets whose bytes were damaged, and were put back from another replica, since the node started.",
        lambda stream: stream.context.counts[REPAIRED],
    ),
    Definition(
        "jetstream_stream_messages_total",
        "Messages that were not simply stored and acked, by outcome: refused, dropped_without_reply, "
        "duplicates, unknown_outcome; and acks_dropped, whose publisher heard nothing of a stored record.",
        ("stream", "outcome"),
        _messages,
    ),
    of_node(
        "jetstream_compaction_passes_total",
        "Compactions of a stream that came to their end.",
        lambda sources: sources.compaction.passes,
    ),
    of_node(
        "jetstream_compaction_failed_passes_total",
        "Compactions that the disk or damaged data has stopped.",
        lambda sources: sources.compaction.failures,
    ),
    of_node(
        "jetstream_compaction_segments_total",
        "Segments that compaction has rewritten.",
        lambda sources: sources.compaction.segments,
    ),
    of_node(
        "jetstream_compaction_records_total",
        "Records that compaction has removed.",
        lambda sources: sources.compaction.records,
    ),
    of_node(
        "jetstream_compaction_read_bytes_total",
        "Bytes that compaction has read, each time it did.",
        lambda sources: sources.compaction.read_bytes,
    ),
    of_node(
        "jetstream_compaction_freed_bytes_total",
        "Bytes by which compaction has made segments smaller.",
        lambda sources: sources.compaction.freed_bytes,
    ),
    of_node(
        "jetstream_rewrite_segments_total",
        "Segments whose small batches the sealed rewrite has merged.",
        lambda sources: sources.rewrite.segments,
    ),
    of_node(
        "jetstream_rewrite_failures_total",
        "Sealed rewrites that the disk or damaged data has stopped.",
        lambda sources: sources.rewrite.failures,
    ),
    of_node(
        "jetstream_rewrite_replaced_bytes_total",
        "Bytes of the segments that the sealed rewrite has replaced.",
        lambda sources: sources.rewrite.replaced_bytes,
    ),
    of_node(
        "jetstream_rewrite_freed_bytes_total",
        "Bytes by which the sealed rewrite has made segments smaller.",
        lambda sources: sources.rewrite.freed_bytes,
    ),
    of_node(
        "jetstream_scrub_segments_total",
        "Sealed segments that were read again, and found to be good.",
        lambda sources: sources.scrub.segments,
    ),
    of_node(
        "jetstream_scrub_failures_total",
        "Sealed segments that were read again, and are damaged, or that the disk refused to read.",
        lambda sources: sources.scrub.failures,
    ),
    of_node(
        "jetstream_scrub_read_bytes_total",
        "Bytes that were read again to look for damage.",
        lambda sources: sources.scrub.read_bytes,
    ),
    Definition(
        "jetstream_tier_objects_total",
        "Segments uploaded (read back and verified) and downloaded for readers, attempts at either that "
        "failed, and objects deleted because nothing names them any more.",
        ("event",),
        lambda sources: [((event,), count) for event, count in sources.tier.counters.objects.items()],
    ),
    Definition(
        "jetstream_tier_bytes_total",
        "Bytes of the segments that were uploaded and downloaded.",
        ("event",),
        lambda sources: [((event,), count) for event, count in sources.tier.counters.bytes.items()],
    ),
    of_node(
        "jetstream_tier_cached_bytes",
        "Bytes that were downloaded and are still on this node's disk.",
        lambda sources: sources.tier.held_bytes,
    ),
    of_node(
        "jetstream_cursors",
        "Cursors of consumers that this node can tell: all, where it leads their stream, otherwise 0.",
        lambda sources: sources.cursors.cursors,
    ),
    *GROUP_METRICS,
    of_node(
        "jetstream_cursors_unreadable",
        "Cursors stored in a format that this version does not know; who asks for one is refused.",
        lambda sources: sources.cursors.unreadable,
    ),
    Definition(
        "jetstream_disk_free_bytes",
        "Bytes that this node could still store on the file system of its data directory.",
        (),
        _free_bytes,
    ),
    of_node(
        "jetstream_disk_commits_total",
        "Times that groups were written and, where asked, synced together.",
        lambda sources: sources.disk.commits,
    ),
    of_node(
        "jetstream_disk_groups_total",
        "Groups of messages written; over commits it says how many streams were written together.",
        lambda sources: sources.disk.groups,
    ),
    of_node(
        "jetstream_disk_records_total",
        "Records written; over groups it says how many messages shared a write and a sync.",
        lambda sources: sources.disk.records,
    ),
    of_node(
        "jetstream_disk_write_seconds_total",
        "Seconds spent writing groups, on the disk thread and, in short commits, on the event loop.",
        lambda sources: sources.disk.write_seconds,
    ),
    of_node(
        "jetstream_disk_sync_seconds_total",
        "Seconds spent syncing groups, likewise.",
        lambda sources: sources.disk.sync_seconds,
    ),
    of_node(
        "jetstream_disk_failed_groups_total",
        "Groups that were refused, or whose outcome is unknown.",
        lambda sources: sources.disk.failed_groups,
    ),
    Definition(
        "jetstream_publish_stage_seconds",
        "Seconds of the stages of each committed group of messages: gathered (since the first one came), "
        "written, stored (with sync always: synced), committed, acked (handed to the connection).",
        ("stage",),
        lambda sources: [((stage,), each) for stage, each in sources.publish_latency.stages.items()],
        is_histogram=True,
    ),
    Definition(
        "jetstream_publish_seconds",
        "Seconds of all these stages of a group together.",
        (),
        lambda sources: [((), sources.publish_latency.whole)],
        is_histogram=True,
    ),
    *NATS_METRICS,
    of_node(
        "jetstream_socket_connections",
        "Readers that are connected.",
        lambda sources: sources.server.connections,
    ),
    Definition(
        "jetstream_connections_turned_away_total",
        "Connections to the ports of readers, peers and http that were refused because there were too many, "
        "or displaced: cut off for a newer one before they had said who they are.",
        ("port", "event"),
        _turned_away,
    ),
    of_node(
        "jetstream_socket_parked_fetches",
        "Fetches that wait for records.",
        lambda sources: sources.server.parked,
    ),
    of_node(
        "jetstream_socket_buffered_bytes",
        "Bytes in memory that wait for readers to take them; what is sent from files is not among them.",
        lambda sources: sources.server.buffered_bytes,
    ),
    of_node(
        "jetstream_socket_selection_bytes",
        "Bytes of selected answers (fetches with a subject, a key or columns), being made or not yet taken.",
        lambda sources: sources.server.selections.held_bytes,
    ),
    of_node(
        "jetstream_socket_selections_waiting",
        "Fetches that wait until selected answers are made for them: for their turn, or for memory.",
        lambda sources: sources.server.selections.waiting,
    ),
    Definition(
        "jetstream_socket_connections_total",
        "Connections of readers: opened, refused (too many), unauthorized (no or a wrong token), closed, "
        "overdue (cut off as too slow), hoarding (cut off for the memory of a selected answer).",
        ("event",),
        lambda sources: [
            (("opened",), sources.server.counters.connections_opened),
            (("refused",), sources.server.door.refused),
            (("unauthorized",), sources.server.counters.connections_unauthorized),
            (("closed",), sources.server.counters.connections_closed),
            (("overdue",), sources.server.counters.connections_overdue),
            (("hoarding",), sources.server.selections.hoarders),
        ],
    ),
    of_node(
        "jetstream_socket_requests_total",
        "Requests of readers.",
        lambda sources: sources.server.counters.requests,
    ),
    of_node(
        "jetstream_socket_failed_requests_total",
        "Requests of readers that were answered with an error.",
        lambda sources: sources.server.counters.requests_failed,
    ),
    of_node(
        "jetstream_socket_cancelled_requests_total",
        "Requests that readers took back; not among the failed ones.",
        lambda sources: sources.server.counters.requests_cancelled,
    ),
    of_node(
        "jetstream_socket_protocol_errors_total",
        "Connections closed because the peer broke the protocol, that of TLS included.",
        lambda sources: sources.server.counters.protocol_errors,
    ),
    of_node(
        "jetstream_socket_sent_bytes_total",
        "Bytes sent to readers.",
        lambda sources: sources.server.counters.bytes_sent,
    ),
    of_node(
        "jetstream_socket_short_circuit_bytes_total",
        "Bytes that readers on this machine were told to read from the files themselves.",
        lambda sources: sources.server.counters.short_circuit_bytes,
    ),
    of_node(
        "jetstream_socket_awaited_turns_total",
        "Times that a reader that catches up waited for its turn, because something was stored.",
        lambda sources: sources.server.turns_awaited,
    ),
    of_node(
        "jetstream_socket_verified_ranges_total",
        "Ranges whose checksums were computed before they were served, because another process wrote them.",
        lambda sources: sources.server.counters.ranges_verified,
    ),
    of_node(
        "jetstream_socket_warmed_ranges_total",
        "Ranges that a thread read into memory before they were sent.",
        lambda sources: sources.server.counters.ranges_warmed,
    ),
    *REPLICA_METRICS,
    *VOTER_METRICS,
    *HTTP_METRICS,
    *NAMESPACE_METRICS,
)
"""Every metric of a node; beside them stand those of its process (``process_…``)."""
