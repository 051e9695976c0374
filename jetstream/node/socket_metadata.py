"""Which streams and nodes there are, a page at a time; any node tells of all."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from envelope.errors import JetstreamError, UnknownStream
from envelope.limits import KIB
from jetstream.node.socket_streams import Placement, ReadableStream, StreamDirectory
from jetstream.protocol.requests import GetMetadata
from jetstream.protocol.responses import MetadataResponse, StreamMetadata

_PAGE_BYTES: Final = 32 * KIB
"""Of stream metadata in one response, well within a frame header."""

_STREAM_METADATA_BYTES: Final = 320
"""One stream's metadata without the names in it, rounded up."""

_NODES_MAX: Final = 64
"""Nodes named in one response: enough to find all others."""


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


def metadata_page(request: GetMetadata, directory: StreamDirectory) -> MetadataResponse:
    """Return as many streams as a page holds, after the one the last page ended with."""
    names = sorted(set(request.streams)) if request.streams is not None else directory.names()
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
        placement = directory.placement(name)
        if placement is not None:  # unknown names are left out
            yield _stream_metadata(name, placement, directory)


def _stream_metadata(name: str, placement: Placement, directory: StreamDirectory) -> StreamMetadata:
    metadata = StreamMetadata(
        name=name,
        incarnation=placement.incarnation,
        leader=placement.leader,
        leader_epoch=placement.leader_epoch,
        replicas=list(placement.replicas),
        isr=list(placement.isr),
        read_replicas=list(placement.read_replicas),
    )
    try:
        stream = find_stream(directory, name)
    except JetstreamError:
        return metadata  # whoever reads it here is told why that cannot be
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
