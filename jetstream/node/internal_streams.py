"""What the internal streams are told to be, and how they come into being."""

from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final

from envelope.errors import NotEnoughReplicas, StreamExists
from envelope.internal_streams import CURSORS, INTERNAL_STREAMS, cursors_pattern
from envelope.limits import CURSOR_RECORD_BYTES_MAX, MIB
from envelope.types import AckPolicy, Compact, NodeId, SyncMode
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import CreateStream
from metadata.node.metadata_group import MetadataGroup
from metadata.stream_config import StreamConfig

CURSOR_REPLICAS_MAX: Final = 3

_CURSOR_SEGMENT_BYTES: Final = 8 * MIB
"""What is in the last segment is never compacted, and is read whole when a reign begins."""


def cursors_config(api_prefix: str, known: Collection[NodeId], alive: Collection[NodeId]) -> StreamConfig:
    """Return the configuration of a new stream of cursors.

    Args:
        api_prefix: of the cluster.
        known: all nodes that there are, or will be once they have started.
        alive: those of them that can hold it now.

    Raises:
        NotEnoughReplicas: others are to come; with what is there the cursors would stay with fewer copies.
    """
    replicas = min(CURSOR_REPLICAS_MAX, len(known))
    if len(alive) < replicas:
        raise NotEnoughReplicas(
            f"the stream of cursors is to have {replicas} replicas, and {len(alive)} nodes are alive"
        )
    return StreamConfig(
        name=CURSORS,
        subject=cursors_pattern(api_prefix),
        replicas=replicas,
        ack=AckPolicy.ALL,
        sync=SyncMode.ALWAYS,
        compact=Compact.KEY,
        segment_bytes=_CURSOR_SEGMENT_BYTES,
        record_bytes_max=CURSOR_RECORD_BYTES_MAX,
    )


async def make_cursors(
    api_prefix: str,
    metadata: MetadataGroup,
    alive: Collection[NodeId],
    creation: Callable[[StreamConfig], Awaitable[CreateStream]],
) -> None:
    """Create the stream of cursors, as who leads the metadata log; another request may be doing the same.

    Raises:
        NotEnoughReplicas: as `cursors_config`.
        JetstreamError: it was not created, or nobody knows whether it was.
    """
    known = {*metadata.voters, *(node.node_id for node in metadata.catalog.nodes())}
    command = await creation(cursors_config(api_prefix, known, alive))
    with suppress(StreamExists):  # a moment ago, for fewer nodes
        (await metadata.propose(command)).answer()


def count_internal(catalog: Catalog) -> int:
    """Return how many internal streams there are."""
    return sum(catalog.stream(name) is not None for name in INTERNAL_STREAMS)
