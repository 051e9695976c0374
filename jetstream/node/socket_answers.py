"""What a reader is told of a stream at one moment: the headers of responses, and what decides about them."""

from envelope.errors import StreamOffline
from envelope.types import Incarnation, Offset
from jetstream.fetch.planner import StreamView, committed
from jetstream.fetch.queries import offset_of
from jetstream.log.format.schema import SCHEMA_ID
from jetstream.log.readable_log import FileRange
from jetstream.log.segments.index import StoredBatches
from jetstream.node.socket_connection import Pending
from jetstream.node.socket_streams import ReadableStream
from jetstream.protocol.requests import Fetch
from jetstream.protocol.responses import FetchResponse, ListOffsetsResponse


def view_of(stream: ReadableStream) -> StreamView[FileRange]:
    """Return a stream as the planner looks at it, now."""
    return StreamView(
        Incarnation(stream.incarnation),
        stream.high_watermark,
        stream.readable,
        stream.leader_epoch,
        stream.leads,
    )


def offset_response(pending: Pending, stream: ReadableStream, offset: Offset) -> ListOffsetsResponse:
    """Return the header with ``offset``, or with the high watermark if that is below it.

    Raises:
        StreamOffline: below it by who knows how much: what earlier leaders acked is not known yet.
    """
    view = view_of(stream)
    if offset > view.high_watermark:
        _refuse_unless_known(stream)
    return _list_offsets_response(pending, stream, committed(offset, view))


def boundary_response(pending: Pending, stream: ReadableStream, found: StoredBatches) -> ListOffsetsResponse:
    """Return the header that tells where these batches end; raises as `offset_response` if there are none."""
    if found.bytes == 0:
        _refuse_unless_known(stream)
    return _list_offsets_response(pending, stream, found.next, found.bytes)


def _refuse_unless_known(stream: ReadableStream) -> None:
    if stream.leads and not stream.knows_committed:
        raise StreamOffline("a new leader does not know yet how much is committed")


def _list_offsets_response(
    pending: Pending, stream: ReadableStream, offset: Offset, stored_bytes: int | None = None
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        id=pending.request.id,
        offset=offset,
        leader_epoch=stream.leader_epoch,
        log_start_offset=stream.readable.log_start_offset,
        high_watermark=stream.high_watermark,
        incarnation=stream.incarnation,
        leads=stream.leads,
        bytes=stored_bytes,
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
