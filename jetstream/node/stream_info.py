"""What the request API tells of a stream: its row of the catalogue and its live state here."""

from datetime import timedelta

from envelope.errors import JetstreamError, StreamOffline
from envelope.types import TimestampUs
from jetstream.node.gaps import Gap
from jetstream.node.stream import StreamOwner
from jetstream.node.streams import Streams
from metadata.api.responses import (
    DedupeInfo,
    OffsetRange,
    PossibleGap,
    StreamInfo,
    StreamState,
    StreamSummary,
    utc,
)
from metadata.catalog.tables import Stream

_NOTHING = DedupeInfo(ids=0, effective_window=timedelta(0))


def stream_info(stream: Stream, streams: Streams, interruption: Gap | None, now: TimestampUs) -> StreamInfo:
    """Return everything known of ``stream``; one whose log could not be opened has no live numbers."""
    task, problem = _live(stream, streams)
    base = {
        "config": stream.config,
        "incarnation": stream.incarnation,
        "created_at": utc(stream.created),
        "state": StreamState.ONLINE if problem is None else StreamState.OFFLINE,
        "reason": None if problem is None else problem.description,
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "replicas": list(stream.replicas),
        "isr": list(stream.isr_nodes),
    }
    if task is None:
        return StreamInfo(
            **base,
            log_start_offset=0,
            log_end_offset=0,
            high_watermark=0,
            bytes=0,
            segments=0,
            dedupe=_NOTHING,
        )
    return StreamInfo(
        **base,
        log_start_offset=task.log.log_start_offset,
        log_end_offset=task.log.log_end_offset,
        high_watermark=task.high_watermark,
        bytes=task.log.bytes,
        segments=task.log.segments,
        dedupe=_dedupe(task, now),
        possible_gaps=[_possible_gap(gap) for gap in task.gaps]
        + ([_possible_gap(interruption, lasting=True)] if interruption else []),
        corrupt_ranges=[OffsetRange(start=start, end=end) for start, end in task.log.corrupt_ranges],
    )


def stream_summary(stream: Stream, streams: Streams) -> StreamSummary:
    """Return one line of a list."""
    task, _ = _live(stream, streams)
    return StreamSummary(
        name=stream.name,
        subject=stream.config.subject,
        ack=stream.config.ack,
        replicas=list(stream.replicas),
        leader=stream.leader,
        leader_epoch=stream.leader_epoch,
        log_start_offset=task.log.log_start_offset if task else None,
        log_end_offset=task.log.log_end_offset if task else None,
        high_watermark=task.high_watermark if task else None,
        bytes=task.log.bytes if task else None,
    )


def _live(stream: Stream, streams: Streams) -> tuple[StreamOwner | None, JetstreamError | None]:
    try:
        task = streams.stream(stream.name)
    except StreamOffline as problem:
        return None, problem
    return task, None if task is None else task.log.failed or task.route.problem


def _dedupe(task: StreamOwner, now: TimestampUs) -> DedupeInfo:
    window = task.ingest.dedupe
    return DedupeInfo(
        ids=len(window), effective_window=timedelta(microseconds=window.effective_window_us(now))
    )


def _possible_gap(gap: Gap, *, lasting: bool = False) -> PossibleGap:
    return PossibleGap(
        kind=gap.kind,
        since=utc(gap.since),
        until=None if lasting else utc(gap.until),
        count=gap.messages or 1,
    )
