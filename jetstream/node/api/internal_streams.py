"""The settings of the internal streams, and their creation."""

from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Final

from envelope.errors import NotEnoughReplicas, StreamExists
from envelope.internal_streams import INTERNAL_STREAMS, cursors_pattern, group_shard_subject, is_group_shard
from envelope.limits import CURSOR_RECORD_BYTES_MAX, GROUP_RECORD_BYTES_MAX, MIB
from envelope.types import AckPolicy, Compact, NodeId, StreamName, SyncMode
from jetstream.node.api.placement import Placing
from metadata.catalog.catalog import Catalog
from metadata.node.catalogue.group import MetadataQuorum
from metadata.stream_config import StreamConfig

INTERNAL_REPLICAS_MAX: Final = 3

_SEGMENT_BYTES: Final = 8 * MIB
"""What is in the last segment is never compacted, and is read whole when a reign begins."""


def internal_config(
    name: StreamName, api_prefix: str, known: Collection[NodeId], alive: Collection[NodeId]
) -> StreamConfig:
    """Return the configuration of an internal stream that is new.

    Args:
        name: one of `INTERNAL_STREAMS`.
        api_prefix: of the cluster.
        known: all nodes that there are, or will be once they have started.
        alive: those of them that can hold it now.

    Raises:
        NotEnoughReplicas: others are to come; with what is there it would stay with fewer copies.
    """
    assert name in INTERNAL_STREAMS, name
    replicas = min(INTERNAL_REPLICAS_MAX, len(known))
    if len(alive) < replicas:
        raise NotEnoughReplicas(
            f"internal stream {name!r} is to have {replicas} replicas, and {len(alive)} nodes are alive"
        )
    config = StreamConfig(
        name=name,
        subject=cursors_pattern(api_prefix),
        replicas=replicas,
        ack=AckPolicy.ALL,
        sync=SyncMode.ALWAYS,
        compact=Compact.KEY,
        segment_bytes=_SEGMENT_BYTES,
        record_bytes_max=CURSOR_RECORD_BYTES_MAX,
    )
    if not is_group_shard(name):
        return config
    only_of_shards = {
        "subject": group_shard_subject(api_prefix, name),
        "record_bytes_max": GROUP_RECORD_BYTES_MAX,
        "dedupe_window": timedelta(0),  # nobody publishes there
    }
    return config.model_copy(update=only_of_shards)


async def make_internal_stream(
    name: StreamName, api_prefix: str, metadata: MetadataQuorum, placing: Placing
) -> None:
    """Create an internal stream, as who leads the metadata log; another request may be doing the same.

    Raises:
        NotLeader: another node leads the metadata log.
        NotEnoughReplicas: as `internal_config`.
        JetstreamError: it was not created, or nobody knows whether it was.
    """
    known = {*metadata.voters, *(node.node_id for node in metadata.catalog.nodes())}
    alive = [candidate.node_id for candidate in placing.candidates()]
    command = await placing.creation(internal_config(name, api_prefix, known, alive))
    with suppress(StreamExists):  # a moment ago, for fewer nodes
        (await metadata.propose(command)).answer()


def count_internal(catalog: Catalog) -> int:
    """Return how many internal streams there are."""
    return sum(catalog.stream(name) is not None for name in INTERNAL_STREAMS)
