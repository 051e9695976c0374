"""The settings of the internal streams, and their creation.

The controller gives them more replicas when there are more nodes (`metadata.controller.internal_growth`).
"""

import asyncio
import logging
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Final

from envelope.errors import JetstreamError, NotEnoughReplicas, StreamExists
from envelope.internal_streams import (
    AUDIT,
    INTERNAL_STREAMS,
    audit_pattern,
    cursors_pattern,
    group_shard_subject,
    is_group_shard,
)
from envelope.limits import CURSOR_RECORD_BYTES_MAX, GROUP_RECORD_BYTES_MAX, KIB, MIB
from envelope.types import AckPolicy, Compact, NodeId, StreamName, SyncMode
from jetstream.node.api.placement import Placing
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import UpdateStream
from metadata.limits import INTERNAL_REPLICAS_MAX
from metadata.members import node_of
from metadata.node.catalogue.group import MetadataQuorum
from metadata.stream_config import Retention, StreamConfig
from metadata.stream_patch import StreamPatch

_log = logging.getLogger(__name__)

_SEGMENT_BYTES: Final = 8 * MIB
"""What is in the last segment is never compacted or removed, and is read whole when a reign begins."""
_AUDIT_SEGMENT_AGE: Final = timedelta(days=7)
_AUDIT_RECORD_BYTES_MAX: Final = 64 * KIB
_AUDIT_LOOK_SECONDS: Final = 0.5
"""The time between two looks whether the audit's stream is there, and as the settings say."""


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
    if name == AUDIT:
        only_of_audit = {
            "subject": audit_pattern(api_prefix),
            "record_bytes_max": _AUDIT_RECORD_BYTES_MAX,
            "compact": Compact.NONE,
            "segment_age": _AUDIT_SEGMENT_AGE,
        }
        return config.model_copy(update=only_of_audit)
    if not is_group_shard(name):
        return config
    only_of_shards = {
        "subject": group_shard_subject(api_prefix, name),
        "record_bytes_max": GROUP_RECORD_BYTES_MAX,
        "dedupe_window": timedelta(0),  # nobody publishes there
    }
    return config.model_copy(update=only_of_shards)


async def make_internal_stream(
    name: StreamName,
    api_prefix: str,
    metadata: MetadataQuorum,
    placing: Placing,
    retention: Retention | None = None,
) -> None:
    """Create an internal stream, as who leads the metadata log; another request may be doing the same.

    ``retention``: of the stream; None: everything stays.

    Raises:
        NotLeader: another node leads the metadata log.
        NotEnoughReplicas: as `internal_config`.
        JetstreamError: it was not created, or nobody knows whether it was.
    """
    known = {*map(node_of, metadata.voters), *(node.node_id for node in metadata.catalog.nodes())}
    alive = [candidate.node_id for candidate in placing.candidates()]
    config = internal_config(name, api_prefix, known, alive)
    if retention is not None:
        config = config.model_copy(update={"retention": retention})
    command = await placing.creation(config)
    with suppress(StreamExists):  # a moment ago, for fewer nodes
        (await metadata.propose(command)).answer()


async def keep_audit_stream(
    retention: Retention, api_prefix: str, metadata: MetadataQuorum, placing: Placing
) -> None:
    """Make the audit's stream, and keep its retention as it is set, while this node leads the metadata log.

    Runs until cancelled; a node that does not lead the metadata log changes nothing.
    """
    while True:
        try:
            row = metadata.catalog.stream(AUDIT)
            if row is None:
                await make_internal_stream(AUDIT, api_prefix, metadata, placing, retention)
            elif row.config.retention != retention and placing.candidates():
                patch = StreamPatch.model_validate({"retention": retention.model_dump()})
                (
                    await metadata.propose(UpdateStream(stream=AUDIT, patch=patch, api_prefix=api_prefix))
                ).answer()
                _log.info("retention of the audit changed stream=%s", AUDIT)
        except JetstreamError as error:  # others lead the metadata log, or are to come
            _log.debug("the audit's stream is not as it is to be stream=%s error=%s", AUDIT, error)
        await asyncio.sleep(_AUDIT_LOOK_SECONDS)


def count_internal(catalog: Catalog) -> int:
    """Return how many internal streams there are."""
    return sum(catalog.stream(name) is not None for name in INTERNAL_STREAMS)
