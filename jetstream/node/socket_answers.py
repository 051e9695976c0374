"""What a reader is told of a stream at one moment: the headers of responses, and what decides about them."""

from envelope.types import Incarnation
from jetstream.fetch.planner import StreamView
from jetstream.fetch.queries import offset_of
from jetstream.log.readable_log import FileRange
from jetstream.log.schema import SCHEMA_ID
from jetstream.node.socket_connection import Pending
from jetstream.node.socket_streams import ReadableStream
from jetstream.protocol.requests import Fetch
from jetstream.protocol.responses import FetchResponse


def view_of(stream: ReadableStream) -> StreamView[FileRange]:
    """Return a stream as the planner looks at it, now."""
    return StreamView(
        Incarnation(stream.incarnation),
        stream.high_watermark,
        stream.readable,
        stream.leader_epoch,
        stream.leads,
    )


def fetch_response(pending: Pending, stream: ReadableStream, file_range: FileRange) -> FetchResponse:
    """Return the header above the bytes of ``file_range``."""
    return FetchResponse(
        id=pending.request.id,
        epoch=file_range.leader_epoch,
        schema_id=SCHEMA_ID,
        start_offset=file_range.base,
        next_offset=file_range.next,
        records=file_range.next - file_range.base,
        high_watermark=stream.high_watermark,
        log_start_offset=stream.readable.log_start_offset,
        incarnation=stream.incarnation,
        leads=stream.leads,
    )


def empty_response(request: Fetch, stream: ReadableStream) -> FetchResponse:
    """Return the header that says that there is nothing where ``request`` stands."""
    return FetchResponse(
        id=request.id,
        epoch=stream.leader_epoch,
        schema_id=SCHEMA_ID,
        start_offset=offset_of(request),
        next_offset=offset_of(request),
        records=0,
        high_watermark=stream.high_watermark,
        log_start_offset=stream.readable.log_start_offset,
        incarnation=stream.incarnation,
        leads=stream.leads,
    )
