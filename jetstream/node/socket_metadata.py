"""Which streams and nodes there are, a page at a time."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

from envelope.errors import JetstreamError, UnknownStream
from envelope.limits import KIB
from jetstream.node.socket_streams import ReadableStream, StreamDirectory
from jetstream.protocol.requests import GetMetadata
from jetstream.protocol.responses import MetadataResponse, StreamMetadata

_PAGE_BYTES: Final = 32 * KIB
"""Of stream metadata in one response, well within a frame header."""

_STREAM_METADATA_BYTES: Final = 256
"""One stream's metadata without its name and incarnation, rounded up."""

_NODES_MAX: Final = 64
"""Nodes named in one response: enough to find all others."""


def find_stream(directory: StreamDirectory, name: str) -> ReadableStream:
    """Return the stream.

    Raises:
        UnknownStream: there is none of that name.
        StreamOffline: its log is not open.
    """
    stream = directory.stream(name)
    if stream is None:
        raise UnknownStream(f"there is no stream {name[:256]!r}")
    return stream


def metadata_page(request: GetMetadata, directory: StreamDirectory, node: str) -> MetadataResponse:
    """Return as many streams as a page holds, after the one the last page ended with; ``node`` leads them."""
    names = sorted(set(request.streams)) if request.streams is not None else directory.names()
    start = 0 if request.after is None else bisect_right(names, request.after)
    streams: list[StreamMetadata] = []
    page_bytes = 0
    for metadata in _streams_metadata(names[start:], directory, node):
        page_bytes += _STREAM_METADATA_BYTES + len(metadata.name) + len(metadata.incarnation)
        if page_bytes > _PAGE_BYTES:
            break
        streams.append(metadata)
    nodes = list(directory.nodes()[:_NODES_MAX])
    return MetadataResponse(id=request.id, nodes=nodes, streams=streams, more=page_bytes > _PAGE_BYTES)


def _streams_metadata(
    names: Sequence[str], directory: StreamDirectory, node: str
) -> Iterator[StreamMetadata]:
    for name in names:
        try:
            stream = find_stream(directory, name)
        except JetstreamError:
            continue  # unknown names are left out; whoever reads an offline stream is told why
        yield StreamMetadata(
            name=stream.name,
            incarnation=stream.incarnation,
            leader=node,
            leader_epoch=stream.leader_epoch,
            log_start_offset=stream.log.log_start_offset,
            log_end_offset=stream.log.log_end_offset,
            high_watermark=stream.high_watermark,
        )
