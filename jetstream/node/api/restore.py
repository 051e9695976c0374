"""Creating a stream that goes on from what the object store alone has of it."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from envelope.errors import InvalidConfig, RemovalPending, StreamExists
from envelope.types import Incarnation, LeaderEpoch, StreamName
from jetstream.node.tiers.segment_cache import Tier
from jetstream.tier.restore import Remains, remains_of
from metadata.api.requests import RestoreStreamRequest
from metadata.catalog.catalog import Catalog
from metadata.catalog.commands import CreateStream
from metadata.catalog.directories import directory_of
from metadata.catalog.tables import Removal
from metadata.stream_config import StreamConfig

_log = logging.getLogger(__name__)


def check_store(tier: Tier, *, needed: bool | None) -> None:
    """Raise InvalidConfig if a stream is to have a tier, and this node has no store."""
    if needed and not tier.has_store:
        raise InvalidConfig(
            "tier: the nodes have no object store: set `tier` in their configuration", field="tier"
        )


async def found_remains(request: RestoreStreamRequest, catalog: Catalog, tier: Tier) -> Remains:
    """Return what the store has of the stream.

    Raises:
        StreamExists: there is a stream of that name.
        RemovalPending: the objects of its earlier life are still to be deleted.
        UnknownStream, CorruptDataError, TierUnavailable: as `remains_of`.
    """
    name = StreamName(request.name)
    if catalog.stream(name) is not None:
        raise StreamExists(f"stream {name!r} exists: what it has in the object store is being used")
    wanted = None if request.incarnation is None else Incarnation(request.incarnation)
    owed = catalog.removals()  # before the look: none can be added that concerns what it finds
    remains = await tier.look(partial(remains_of, name=name, incarnation=wanted))
    check_removals(remains, owed)
    _log.info("stream to be restored stream=%s from=%s", name, remains.path)
    return remains


def check_removals(remains: Remains, owed: Iterable[Removal]) -> None:
    """Raise RemovalPending if an owed removal will delete objects that the remains consist of."""
    for removal in owed:
        if directory_of(removal.name, removal.incarnation) in remains.directories:
            raise RemovalPending(
                f"stream {removal.name!r} was deleted, and its objects are yet to be", name=removal.name
            )


def restored_config(request: RestoreStreamRequest, remains: Remains, node_count: int) -> StreamConfig:
    """Return the configuration that the stream had.

    With other replicas, if they are asked for, there are no more in `min_insync_replicas` than these, and no
    more read replicas than the other nodes can hold: the cluster may be smaller than the one that is gone.
    """
    config, replicas = remains.manifest.config, request.replicas
    if replicas is None:
        return config
    fields = {field: getattr(config, field) for field in StreamConfig.model_fields}
    changes = {
        "replicas": replicas,
        "read_replicas": min(config.read_replicas, max(node_count - replicas, 0)),
    }
    if config.min_insync_replicas is not None:
        changes["min_insync_replicas"] = min(config.min_insync_replicas, replicas)
    return StreamConfig.model_validate({**fields, **changes})


def going_on(creation: CreateStream, remains: Remains) -> CreateStream:
    """Return a creation that goes on where the remains end, above all reigns of before."""
    return replace(creation, leader_epoch=LeaderEpoch(remains.newest_epoch + 1), tier=remains.mark)
