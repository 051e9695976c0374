"""The headers of responses about a stream at one moment.

`metadata_page` lists the streams and nodes of the cluster, a page at a time; every node has all of them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from envelope.errors import JetstreamError, StreamOffline, UnknownStream
from envelope.limits import KIB
from envelope.types import Offset
from jetstream.fetch.planner import StreamView, committed
from jetstream.fetch.queries import offset_of
from jetstream.log.format.schema import SCHEMA_ID
from jetstream.log.reader import FileRange
from jetstream.log.segments.index import StoredBatches
from jetstream.node.readers.ports import ReadableStream, StreamDirectory, whole_of
from jetstream.node.readers.reader_connection import Pending
from jetstream.protocol.requests import PROTOCOL_VERSION, Fetch, GetMetadata, Hello
from jetstream.protocol.responses import (
    FetchResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataResponse,
    StreamMetadata,
)
from jetstream.protocol.rights import ReaderRights
from metadata.catalog.tables import Stream

_PAGE_BYTES: Final = 32 * KIB
"""Of stream metadata in one response, well within a frame header."""

_STREAM_METADATA_BYTES: Final = 320
"""One stream's metadata without the names in it, rounded up."""

_NODES_MAX: Final = 64
"""Nodes named in one response: enough to find all others."""


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The node as it names itself in the response to a hello."""

    node: str
    version: str
    machine: str | None = None
    """Told to clients, which may then read files of ours; None: they get all by the socket."""

    def hello(self, request: Hello) -> HelloResponse:
        """Return the response."""
        return HelloResponse(
            id=request.id,
            protocol=PROTOCOL_VERSION,
            node=self.node,
            node_version=self.version,
            cancel=True,
            machine=self.machine,
        )


def find_stream(directory: StreamDirectory, name: str) -> ReadableStream:
    """Return the stream.

    Raises:
        UnknownStream: there is none of that name.
        NotReplica: other nodes have it.
        StreamOffline: its log is not open.
    """
    stream = directory.stream(name)
    if stream is None:
        raise UnknownStream(f"there is no stream {name[:256]!r}")
    return stream


def metadata_page(request: GetMetadata, directory: StreamDirectory, rights: ReaderRights) -> MetadataResponse:
    """Return as many streams as a page holds, after the one the last page ended with.

    Of all that there are, a reader with tickets is told those that it may read.
    """
    names = (
        sorted(set(request.streams))
        if request.streams is not None
        else [name for name in directory.names() if rights.sees(name, partial(whole_of, directory.catalog))]
    )
    start = 0 if request.after is None else bisect_right(names, request.after)
    streams: list[StreamMetadata] = []
    page_bytes = 0
    for metadata in _streams_metadata(names[start:], directory):
        page_bytes += _metadata_bytes(metadata)
        if page_bytes > _PAGE_BYTES:
            break
        streams.append(metadata)
    nodes = list(directory.nodes()[:_NODES_MAX])
    return MetadataResponse(id=request.id, nodes=nodes, streams=streams, more=page_bytes > _PAGE_BYTES)


def _streams_metadata(names: Sequence[str], directory: StreamDirectory) -> Iterator[StreamMetadata]:
    for name in names:
        row = directory.row(name)
        if row is not None:  # unknown names are left out
            yield _stream_metadata(row, directory)


def _stream_metadata(row: Stream, directory: StreamDirectory) -> StreamMetadata:
    metadata = StreamMetadata(
        name=row.name,
        incarnation=row.incarnation,
        leader=row.leader,
        leader_epoch=row.leader_epoch,
        replicas=list(row.replicas),
        isr=list(row.isr_nodes),
        read_replicas=list(row.read_replicas),
    )
    try:
        stream = find_stream(directory, row.name)
    except JetstreamError:
        return metadata  # a fetch here is refused with the reason
    return metadata.model_copy(
        update={
            "log_start_offset": stream.log.log_start_offset,
            "log_end_offset": stream.log.log_end_offset,
            "high_watermark": stream.high_watermark,
        }
    )


def _metadata_bytes(metadata: StreamMetadata) -> int:
    names = (
        metadata.name,
        metadata.incarnation,
        metadata.leader or "",
        *(metadata.replicas or ()),
        *(metadata.isr or ()),
        *(metadata.read_replicas or ()),
    )
    return _STREAM_METADATA_BYTES + sum(len(name) + len('"",') for name in names)


def offset_response(pending: Pending, stream: ReadableStream, offset: Offset) -> ListOffsetsResponse:
    """Return the header with ``offset``, or with the high watermark if that is below it.

    Raises:
        StreamOffline: below it by an unknown distance: the earlier leaders' acks are not known yet.
    """
    view = stream.view()
    if offset > view.high_watermark:
        _refuse_unless_known(stream)
    return _list_offsets_response(pending, view, committed(offset, view))


def boundary_response(
    pending: Pending, stream: ReadableStream, batches: StoredBatches
) -> ListOffsetsResponse:
    """Return the header with the end of these batches; raises as `offset_response` if there are none."""
    if batches.bytes == 0:
        _refuse_unless_known(stream)
    return _list_offsets_response(pending, stream.view(), batches.next, batches.bytes)


def _refuse_unless_known(stream: ReadableStream) -> None:
    if stream.leads and not stream.has_committed_own_epoch:
        raise StreamOffline("a new leader does not know yet how much is committed")


def _list_offsets_response(
    pending: Pending, view: StreamView[FileRange], offset: Offset, stored_bytes: int | None = None
) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        id=pending.request.id,
        offset=offset,
        leader_epoch=view.leader_epoch,
        log_start_offset=view.index.log_start_offset,
        high_watermark=view.high_watermark,
        incarnation=view.incarnation,
        leads=view.leads,
        bytes=stored_bytes,
    )


def fetch_response(pending: Pending, view: StreamView[FileRange], file_range: FileRange) -> FetchResponse:
    """Return the header above the bytes of ``file_range``."""
    return FetchResponse(
        id=pending.request.id,
        epoch=file_range.leader_epoch,
        schema_id=SCHEMA_ID,
        start_offset=file_range.base,
        next_offset=file_range.next,
        records=file_range.next - file_range.base,
        high_watermark=view.high_watermark,
        log_start_offset=view.index.log_start_offset,
        incarnation=view.incarnation,
        leads=view.leads,
    )


def empty_response(request: Fetch, view: StreamView[FileRange]) -> FetchResponse:
    """Return the header of an empty answer at the offset of ``request``."""
    return FetchResponse(
        id=request.id,
        epoch=view.leader_epoch,
        schema_id=SCHEMA_ID,
        start_offset=offset_of(request),
        next_offset=offset_of(request),
        records=0,
        high_watermark=view.high_watermark,
        log_start_offset=view.index.log_start_offset,
        incarnation=view.incarnation,
        leads=view.leads,
    )
