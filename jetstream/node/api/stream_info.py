"""A stream's info: its row of the catalogue and its live state on this node."""

from bisect import bisect_left
from dataclasses import asdict
from datetime import timedelta

from envelope.errors import JetstreamError, NotLeader, NotReplica, StreamLost, StreamOffline
from envelope.partition_errors import StreamIsPartitioned
from envelope.types import LeaderEpoch, Offset, TimestampUs
from jetstream.log.rewriting.compaction_plan import cleanable, dirty_ratio
from jetstream.log.state.epochs import EpochHistory
from jetstream.node.maintenance.stream_times import time_ahead_us
from jetstream.node.nats.gaps import Gap
from jetstream.node.replicas.replica import StreamReplica
from jetstream.node.streams.directory import NodeStreams
from metadata.api.publisher_responses import SessionInfo, StreamPublishers, TxidPlace
from metadata.api.requests import StreamPublishersRequest
from metadata.api.response_base import fitting_page
from metadata.api.responses import (
    CompactionInfo,
    DedupeInfo,
    OffsetRange,
    PossibleGap,
    ReplicaInfo,
    StreamInfo,
    StreamState,
    StreamSummary,
    TierInfo,
    UncleanElectionInfo,
    utc,
)
from metadata.catalog.tables import Stream

_NOTHING = DedupeInfo(ids=0, effective_window=timedelta(0))


def stream_info(
    stream: Stream, streams: NodeStreams, interruption: Gap | None, now: TimestampUs
) -> StreamInfo:
    """Return everything known of ``stream``; where its log is not open there are no live numbers."""
    replica, problem = _live(stream, streams)
    base = {
        "config": stream.config,
        "incarnation": stream.incarnation,
        "created_at": utc(stream.created),
        "state": StreamState.ONLINE if problem is None else StreamState.OFFLINE,
        "reason": None if problem is None else problem.description,
        "reason_code": None if problem is None else problem.err_code,
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "replicas": list(stream.replicas),
        "isr": list(stream.isr_nodes),
        "blank": list(stream.blank),
        "read_replicas": list(stream.read_replicas),
        "last_unclean_election": _last_unclean(stream, replica),
        "target": None if stream.target is None else list(stream.target),
    }
    if replica is None:
        return StreamInfo(
            **base,
            log_start_offset=0,
            log_end_offset=0,
            high_watermark=0,
            bytes=0,
            segments=0,
            dedupe=_NOTHING,
        )
    log, gaps = replica.log, [_possible_gap(gap) for gap in replica.context.gaps]
    return StreamInfo(
        **base,
        replica_states=_replica_states(stream, replica),
        log_start_offset=replica.readable.log_start_offset,
        log_end_offset=log.log_end_offset,
        high_watermark=replica.high_watermark,
        bytes=log.reader.size,
        segments=len(log.reader.segments),
        time_ahead=timedelta(microseconds=time_ahead_us(replica, now)),
        dedupe=_dedupe(replica, now),
        compaction=_compaction(replica),
        rewritten_end=None if log.writer.config.rewrite_after_us is None else log.rewritten_end,
        tier=_tier(replica),
        possible_gaps=[*gaps, *([_possible_gap(interruption, lasting=True)] if interruption else ())],
        corrupt_ranges=[OffsetRange(start=start, end=end) for start, end in log.reader.corrupt_ranges],
    )


async def confirm_reign(streams: NodeStreams, name: str) -> None:
    """Return once it is known that this node leads the stream, if it seems so here.

    A leader that has stood still, or was cut off, does not know yet that another one leads.

    Raises:
        StreamOffline: it leads no more, or nobody can say whether it does.
    """
    replica, _ = _found(streams, name)
    if replica is not None and replica.leading is not None:
        await replica.confirm_leadership()


def stream_summary(stream: Stream, streams: NodeStreams) -> StreamSummary:
    """Return one line of a list."""
    replica, _ = _live(stream, streams)
    return StreamSummary(
        name=stream.name,
        subject=stream.config.subject,
        ack=stream.config.ack,
        replicas=list(stream.replicas),
        leader=stream.leader,
        leader_epoch=stream.leader_epoch,
        isr=list(stream.isr_nodes),
        log_start_offset=replica.readable.log_start_offset if replica else None,
        log_end_offset=replica.log.log_end_offset if replica else None,
        high_watermark=replica.high_watermark if replica else None,
        bytes=replica.log.reader.size if replica else None,
        partition_of=stream.config.partition_of,
        partition=stream.config.partition,
    )


def stream_publishers(
    request: StreamPublishersRequest, row: Stream, replica: StreamReplica, high_watermark: Offset
) -> StreamPublishers:
    """Return what a stream that is led here remembers of its publishers, as far as it is committed."""
    history = replica.context.opened.history
    after = None if request.after is None else request.after.encode("latin-1", "replace")
    txid, sessions_now = history.committed_state()
    known = sorted((session, last) for session, last in sessions_now if last.offset < high_watermark)
    behind = [(session, last) for session, last in known if after is None or session > after]
    sessions = fitting_page(
        (
            SessionInfo(
                session=session.decode("latin-1"),
                sequence=last.sequence,
                offset=last.offset,
                time=utc(last.timestamp),
                gapless=last.is_gapless,
            )
            for session, last in behind
        ),
        request.limit,
    )
    txid_set = row.txid_set
    return StreamPublishers(
        name=row.name,
        incarnation=row.incarnation,
        end=high_watermark,
        last_txid=None if txid is None else TxidPlace(**txid._asdict()),
        txid_set=None if txid_set is None else TxidPlace(**asdict(txid_set)),
        sessions=sessions,
        more=len(sessions) < len(behind),
    )


def _live(stream: Stream, streams: NodeStreams) -> tuple[StreamReplica | None, JetstreamError | None]:
    """Return the replica that is here, and why the stream cannot take records here, if it cannot."""
    replica, problem = _found(streams, stream.name)
    if replica is None:
        return None, problem
    if replica.leading is None:
        return replica, _not_led_here(stream)
    if not replica.leads:
        return replica, StreamOffline("its leader has no lease, so that it says nothing")
    return replica, replica.health_error


def _found(streams: NodeStreams, name: str) -> tuple[StreamReplica | None, JetstreamError | None]:
    """Return the replica that is here, or why its log cannot be looked at."""
    try:
        return streams.stream(name), None
    except (StreamOffline, NotReplica, StreamIsPartitioned) as problem:
        return None, problem


def _not_led_here(stream: Stream) -> JetstreamError:
    if stream.is_lost:
        return StreamLost("it has no leader: all who were in sync have lost their logs")
    if stream.leader is None:
        return StreamOffline("it has no leader now: no replica in sync is alive")
    return NotLeader(f"{stream.leader} leads it", leader=stream.leader)


def _last_unclean(stream: Stream, replica: StreamReplica | None) -> UncleanElectionInfo | None:
    unclean = stream.last_unclean
    if unclean is None:
        return None
    return UncleanElectionInfo(
        leader=unclean.leader,
        leader_epoch=unclean.leader_epoch,
        at=None if unclean.at is None else utc(unclean.at),
        from_offset=None if replica is None else _start_of(replica.log.reader.epochs, unclean.leader_epoch),
        given_up=list(unclean.given_up),
    )


def _start_of(epochs: EpochHistory, leader_epoch: LeaderEpoch) -> Offset | None:
    """Return where a reign began, None if that was before what the log has.

    A reign without records is in no follower's history; it began where the next one did.
    """
    starts = epochs.starts
    row = bisect_left(starts, leader_epoch, key=lambda start: start.epoch)
    is_known = row < len(starts) and (row > 0 or starts[row].epoch == leader_epoch)
    return starts[row].start if is_known else None


def _replica_states(stream: Stream, replica: StreamReplica) -> list[ReplicaInfo]:
    """Return the leader's own state and what it knows of the others."""
    if replica.leading is None:
        return []
    log_end = replica.log.log_end_offset
    return [
        ReplicaInfo(
            node=state.node,
            in_sync=state.in_sync,
            is_read_replica=state.node in stream.read_replicas,
            log_end_offset=state.log_end,
            synced_end=state.synced_end,
            high_watermark=state.high_watermark,
            lag=None if state.synced_end is None else max(0, log_end - state.synced_end),
        )
        for state in replica.leading.driver.replica_states()
    ]


def _compaction(replica: StreamReplica) -> CompactionInfo | None:
    log = replica.log
    config, state = log.writer.config.compaction, log.compaction
    if config is None:
        return None
    found = cleanable(log.reader.segments, replica.high_watermark, config, replica.tiered.border)
    return CompactionInfo(
        dirty_ratio=dirty_ratio(found, state.cleaned_end),
        cleaned_end=state.cleaned_end,
        purged_end=state.purged_end,
    )


def _tier(replica: StreamReplica) -> TierInfo | None:
    mark, problem = replica.tiered.mark, replica.tiered.problem
    if replica.tiered.border is None:
        return None
    return TierInfo(
        start=mark.start if mark is not None else None,
        end=mark.end if mark is not None else None,
        manifest=mark.manifest if mark is not None else None,
        local_start_offset=replica.log.log_start_offset,
        problem=problem.description if problem is not None else None,
    )


def _dedupe(replica: StreamReplica, now: TimestampUs) -> DedupeInfo:
    history = replica.context.opened.history
    window, sessions = history.dedupe, history.sessions
    return DedupeInfo(
        ids=len(window),
        effective_window=timedelta(microseconds=window.effective_window_us(now)),
        sessions=len(sessions),
        effective_session_window=timedelta(microseconds=sessions.effective_window_us(now)),
    )


def _possible_gap(gap: Gap, *, lasting: bool = False) -> PossibleGap:
    return PossibleGap(
        kind=gap.kind,
        since=utc(gap.since),
        until=None if lasting else utc(gap.until),
        count=gap.messages or 1,
    )
